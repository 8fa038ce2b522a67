"""Run pytest, then rerun the few tests that failed: `python -m scripts.run_tests ...`.

The last lines name the tests that passed only in the second run: the run is green, but they have to be fixed.
See docs/adr/0009-rerun-failed-tests-once.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

# More than this is no chance, and is not covered up.
_FEW = 3
_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    code = _pytest("--cache-clear", *arguments)
    if code != pytest.ExitCode.TESTS_FAILED:
        return code
    failed = sorted(json.loads(_FAILED.read_text()))
    if len(failed) > _FEW:
        return code
    _tell("Once more, alone:", failed)
    code = _pytest(*failed)
    if code == pytest.ExitCode.OK:
        _tell("Passed, but only at the second time, and to be mended:", failed)
    return code


def _pytest(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode  # noqa: S603


def _tell(what: str, tests: Sequence[str]) -> None:
    sys.stdout.write("\n".join([what, *(f"  {test}" for test in tests), ""]))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
