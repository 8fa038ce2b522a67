"""Paths inside a root folder, such as the root of an image, as a program in that root sees them.

Links in the root are untrusted: an absolute link starts at the root, and `..` never leaves it. Safe only while no other
process changes the root.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

_MAX_LINKS = 64


def resolve(root: Path, path: str, *, follow_last: bool = True) -> str:
    """Return the path from the root without links, as far as it exists. Starts with `/`.

    Without `follow_last`, a link at the end of the path stays.
    Raises OSError (ELOOP) if links lead to each other.
    """
    found: list[str] = []
    rest = [part for part in reversed(path.split("/")) if part not in {"", "."}]
    links = 0
    while rest:
        part = rest.pop()
        if part == "..":
            del found[-1:]
            continue
        found.append(part)
        if not rest and not follow_last:
            break
        target = _link(root.joinpath(*found))
        if target is None:
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        found = [] if target.startswith("/") else found[:-1]
        rest += [part for part in reversed(target.split("/")) if part not in {"", "."}]
    return "/" + "/".join(found)


def outside(root: Path, path: str, *, follow_last: bool = True) -> Path:
    """Return the path of the machine for a path in the root. No part of it below `root` is a link. Raises OSError."""
    return root / resolve(root, path, follow_last=follow_last).lstrip("/")


def _link(path: Path) -> str | None:
    try:
        return str(path.readlink())
    except OSError:
        return None
