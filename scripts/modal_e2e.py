"""Run the tests that need no control plane inside a sandbox at Modal, for `scripts/run-modal-e2e.sh`."""

from __future__ import annotations

import sys
from pathlib import Path

import modal

ROOT = Path(__file__).resolve().parent.parent
_IGNORED = (".venv", ".git", ".env", "**/__pycache__", ".mypy_cache", ".ruff_cache")
_TIMEOUT_SECONDS = 3600


def main() -> int:
    """Return the exit code of the tests."""
    image = (
        modal.Image.debian_slim(python_version="3.12")
        .apt_install("make", "git", "bubblewrap", "iproute2", "nftables")
        .add_local_dir(ROOT, "/src", ignore=list(_IGNORED), copy=True)
        .workdir("/src")
    )
    app = modal.App.lookup("skysail-e2e", create_if_missing=True)
    command = ("bash", "-c", "make -s .venv/.ready && .venv/bin/python -m pytest -q -n 4 tests/unit tests/simulation")
    sandbox = modal.Sandbox.create(*command, app=app, image=image, timeout=_TIMEOUT_SECONDS, cpu=4.0, memory=8192)
    for line in sandbox.stdout:
        sys.stdout.write(line)
    return sandbox.wait(raise_on_termination=False) or sandbox.returncode


if __name__ == "__main__":
    sys.exit(main())
