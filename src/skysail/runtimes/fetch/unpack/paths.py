"""Names of files that somebody else chose: below the folder that they are written to, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from skysail.runtimes.fetch.errors import WrongContent

_LONGEST = 1024
_MAX_PART_BYTES = 255  # of one name between slashes, on every file system of Linux


def below(folder: Path, name: str) -> Path:
    """The path of this name in the folder. Raises WrongContent where it would lead out of it, or nowhere."""
    parts = [part for part in name.split("/") if part not in {"", "."}]
    is_too_long = len(name) > _LONGEST or any(len(part.encode(errors="replace")) > _MAX_PART_BYTES for part in parts)
    is_wrong = name.startswith("/") or ".." in parts or not parts
    if is_wrong or is_too_long or "\\" in name or not name.isprintable():
        raise WrongContent(
            "UnsupportedFormat", f"The model has a file named {name[:100]!r}, which cannot be written: rename it."
        )
    return folder.joinpath(*parts)


def files_in(folder: Path) -> Iterator[PurePosixPath]:
    """All files, relative to the folder, sorted."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield PurePosixPath(path.relative_to(folder).as_posix())
