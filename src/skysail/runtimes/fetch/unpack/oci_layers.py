"""Layers of an image, unpacked over each other: a later layer replaces or removes entries of earlier ones."""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterator
from functools import partial
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
        for count in archives.write(entries, partial(_place, into, top), limit=limit - written, archive=layer):
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


def _place(into: Path, top: str, name: str) -> Path | None:
    """Where this entry goes. One that removes others does so, and goes nowhere."""
    path = below(into, str(PurePosixPath(name).relative_to(top)) if top else name)
    if path.name == _ALL_REMOVED:
        shutil.rmtree(path.parent, ignore_errors=True)
        return None
    if path.name.startswith(_REMOVED):
        # What is left of the name may be none, or lead out of the folder.
        _remove(below(path.parent, path.name.removeprefix(_REMOVED)))
        return None
    return path


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
