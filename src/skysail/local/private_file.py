"""Files that hold secrets: readable for the owner only, and never half written."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def write(path: Path, content: bytes) -> None:
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
        write(mine, secrets.token_urlsafe(32).encode())
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(mine)
        mine.unlink()
    return path.read_text()
