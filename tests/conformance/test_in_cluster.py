"""The suite inside a local cluster: as root, and as somebody without any right over the machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_NOBODY = 65534
# In mounts of its own: the interpreter is shown at its own path, although a folder above it is closed to others.
_BECOME_NOBODY = """
set -e
if [ -n "$1" ]; then
  mount --bind "$2" "$3"
  mount -t tmpfs -o mode=755 none "$1"
  mkdir -p "$2"
  mount --bind "$3" "$2"
fi
shift 3
exec setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs "$@"
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """pytest's own folders are closed to others."""
    path = Path(tempfile.mkdtemp(prefix="skysail-"))
    path.chmod(0o755)
    for name in ("home", "hold"):
        (path / name).mkdir()
    if os.geteuid() == 0:
        os.chown(path / "home", _NOBODY, _NOBODY)
    yield path
    shutil.rmtree(path)


def as_nobody(folder: Path) -> list[str]:
    if os.geteuid() != 0:
        return []  # nobody special already
    base = Path(sys.base_prefix)
    closed = next((str(above) for above in reversed(base.parents) if not above.stat().st_mode & 0o001), "")
    own_mounts = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _BECOME_NOBODY, "sh"]
    return [*own_mounts, closed, str(base), str(folder / "hold")]


@pytest.mark.parametrize("become", [lambda folder: [], as_nobody], ids=["as-we-are", "as-nobody"])
def test_the_suite_passes_in_a_cluster(folder, become):
    command = [*become(folder), sys.executable, "-m", "tests.conformance.in_cluster", str(folder / "home" / "inside")]
    env = {**os.environ, "HOME": str(folder / "home"), "XDG_CACHE_HOME": str(folder / "home" / "cache")}
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
