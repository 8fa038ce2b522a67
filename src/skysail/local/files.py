"""Open paths without following links, and write private files.

Use it where another process may replace part of a path by a link at any time. Files with secrets are readable for their
owner only, and a reader never sees a partial write.
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
    """Return an O_PATH descriptor of `path`, without following links.

    With `can_make`, missing folders are made, and `made` is called with the descriptor of each new folder.
    Raises OSError if the path does not exist or if any part of it is a link.
    """
    folder = os.open(path.anchor, _PART)
    for part in path.relative_to(path.anchor).parts:
        try:
            found = _open_part(folder, part, can_make=can_make, made=made)
        finally:
            os.close(folder)
        folder = found
    return folder


def _open_part(folder: int, part: str, *, can_make: bool, made: Callable[[int], None]) -> int:
    is_new = False
    try:
        found = os.open(part, _PART, dir_fd=folder)
    except FileNotFoundError:
        if not can_make:
            raise
        with contextlib.suppress(FileExistsError):  # another process was faster
            os.mkdir(part, dir_fd=folder)
            is_new = True
        found = os.open(part, _PART, dir_fd=folder)
    if stat.S_ISLNK(os.fstat(found).st_mode):
        os.close(found)
        raise OSError(errno.ELOOP, "path contains a link", part)
    if is_new:
        made(found)
    return found


def write_private(path: Path, content: bytes) -> None:
    """Replace the file atomically: a reader sees the old content or the new content."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.touch(mode=0o600)
    temporary.write_bytes(content)
    temporary.replace(path)


def token(path: Path) -> str:
    """Return the token in this file. If the file is missing, create it; concurrent callers get the same token."""
    if not path.exists():
        path.parent.mkdir(mode=0o700, exist_ok=True)
        temporary = path.with_name(f"{path.name}-{os.getpid()}")
        write_private(temporary, secrets.token_urlsafe(32).encode())
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(temporary)
        temporary.unlink()
    return path.read_text()
