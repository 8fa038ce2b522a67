"""Untrusted file names: accepted only below the folder that they are written to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from skysail.runtimes.fetch.errors import InvalidContent

_MAX_PATH_LENGTH = 1024
_MAX_PART_BYTES = 255  # of one name between slashes, on every file system of Linux


def below(folder: Path, name: str) -> Path:
    """Return the path of this name in the folder. Raises InvalidContent if it is empty or outside of the folder."""
    parts = [part for part in name.split("/") if part not in {"", "."}]
    is_too_long = len(name) > _MAX_PATH_LENGTH or any(
        len(part.encode(errors="replace")) > _MAX_PART_BYTES for part in parts
    )
    is_wrong = name.startswith("/") or ".." in parts or not parts
    if is_wrong or is_too_long or "\\" in name or not name.isprintable():
        raise InvalidContent(
            "UnsupportedFormat", f"The model has a file with the invalid name {name[:100]!r}: rename it."
        )
    return folder.joinpath(*parts)


def files_in(folder: Path) -> Iterator[PurePosixPath]:
    """Yield all files, relative to the folder, sorted."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield PurePosixPath(path.relative_to(folder).as_posix())
