"""Layers of an image, unpacked over each other: a later layer replaces or removes entries of earlier ones."""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterator
from itertools import takewhile
from pathlib import Path, PurePosixPath

from skysail.runtimes.fetch.unpack import archives
from skysail.runtimes.fetch.unpack.paths import below

# Folder of the model in images built for it; the rest may be a whole operating system.
_MODELS = "models"
_REMOVED = ".wh."
_ALL_REMOVED = ".wh..wh..opq"


def unpack(layers: list[Path], into: Path, *, limit: int) -> Iterator[int]:
    """Unpack the layers and yield the number of bytes written. Raises WrongContent."""
    into.mkdir(parents=True, exist_ok=True)
    has_models = yield from _have_models(layers)
    top = _MODELS if has_models else ""
    written = 0
    for layer in layers:
        entries = archives.tar_entries(layer, _is_in_models) if has_models else archives.tar_entries(layer)
        placing = _Layer(into, top).place
        for count in archives.write(entries, placing, limit=limit - written, archive=layer):
            written += count
            yield count


def _have_models(layers: list[Path]) -> Generator[int, None, bool]:
    """Return whether a layer has the folder `models`. Yields 0 while it searches, so that it can be interrupted."""
    for layer in layers:
        for name in archives.names_in(layer):
            yield 0
            if _is_in_models(name):
                return True
    return False


def _is_in_models(name: str) -> bool:
    return PurePosixPath(name).parts[:1] == (_MODELS,) and PurePosixPath(name) != PurePosixPath(_MODELS)


class _Layer:
    """Placement of one layer's entries over those of earlier layers."""

    def __init__(self, into: Path, top: str) -> None:
        self._into = into
        self._top = top
        self._made = {into}

    def place(self, name: str, is_folder: bool) -> Path | None:  # noqa: FBT001 (as `archives` calls it)
        """Return the path of an entry. A whiteout entry deletes its target and returns None."""
        path = below(self._into, str(PurePosixPath(name).relative_to(self._top)) if self._top else name)
        if path.name == _ALL_REMOVED:
            shutil.rmtree(path.parent, ignore_errors=True)
            return None
        if path.name.startswith(_REMOVED):
            # The rest of the name may be empty or lead out of the folder, which `below` rejects.
            _remove(below(path.parent, path.name.removeprefix(_REMOVED)))
            return None
        self._replace(path, is_folder=is_folder)
        return path

    def _replace(self, path: Path, *, is_folder: bool) -> None:
        """Delete entries of earlier layers that block this one: a file in place of a folder, or a folder in place of a
        file.

        Entries of the same layer stay: two that conflict are an error of the layer.
        """
        above = list(takewhile(lambda folder: folder != self._into, path.parents))
        files = [*reversed(above), path] if is_folder else list(reversed(above))
        for each in files:
            if each not in self._made and each.is_file():
                each.unlink()
        if not is_folder and path not in self._made and path.is_dir():
            shutil.rmtree(path)
        self._made.update(above, (path,))


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    elif path.is_file():
        path.unlink()
