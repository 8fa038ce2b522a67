"""Files and folders by a way without links, for places where somebody else can put one at any time.

Files that hold secrets are readable for the owner only, and never half written.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

_PART = os.O_PATH | os.O_NOFOLLOW


def open_nofollow(path: Path, *, can_make: bool = False, made: Callable[[int], None] = lambda _: None) -> int:
    """A descriptor of what is there, good for nothing but to be named; of a new folder where nothing is and one may be.

    Calls `made` with the descriptor of each new folder. Raises OSError, also where any part of the path is a link.
    """
    folder = os.open(path.anchor, _PART)
    for part in path.relative_to(path.anchor).parts:
        try:
            found = _step(folder, part, can_make=can_make, made=made)
        finally:
            os.close(folder)
        folder = found
    return folder


def _step(folder: int, part: str, *, can_make: bool, made: Callable[[int], None]) -> int:
    is_new = False
    try:
        found = os.open(part, _PART, dir_fd=folder)
    except FileNotFoundError:
        if not can_make:
            raise
        with contextlib.suppress(FileExistsError):  # somebody was faster
            os.mkdir(part, dir_fd=folder)
            is_new = True
        found = os.open(part, _PART, dir_fd=folder)
    if stat.S_ISLNK(os.fstat(found).st_mode):
        os.close(found)
        raise OSError(errno.ELOOP, "a link is in the way", part)
    if is_new:
        made(found)
    return found


def write_private(path: Path, content: bytes) -> None:
    """Replace the file at once: who reads it finds the old content or the new one."""
    half = path.with_name(f".{path.name}.new")
    half.touch(mode=0o600)
    half.write_bytes(content)
    half.replace(path)


def token(path: Path) -> str:
    """Return the token in this file, which is made first if need be. Processes that do so at once get the same one."""
    if not path.exists():
        path.parent.mkdir(mode=0o700, exist_ok=True)
        mine = path.with_name(f"{path.name}-{os.getpid()}")
        write_private(mine, secrets.token_urlsafe(32).encode())
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(mine)
        mine.unlink()
    return path.read_text()
