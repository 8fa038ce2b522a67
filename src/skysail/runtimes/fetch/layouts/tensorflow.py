"""Layout for TensorFlow Serving: `MODEL/VERSION/saved_model.pb`, with a number as version."""

from __future__ import annotations

from pathlib import Path

from skysail.runtimes.fetch.errors import InvalidContent
from skysail.runtimes.fetch.unpack.paths import files_in

_HEADS = ("saved_model.pb", "saved_model.pbtxt")
_FIRST = "1"
_EXPORT = 'export one with `tf.keras.models.load_model(FILE).export("folder")` and pack that folder as tar.gz'


def lay_out(tree: Path, into: Path, name: str) -> None:
    found = saved_models(tree)
    if not found:
        raise InvalidContent("UnsupportedFormat", _what_it_is(tree))
    versions = {_version(folder, tree): folder for folder in found}
    if len(versions) < len(found):
        names = ", ".join(str(folder.relative_to(tree)) for folder in found)
        raise InvalidContent("UnsupportedFormat", f"There are several SavedModels ({names}): remove all but one.")
    target = into / name
    target.mkdir()
    # Deepest first, because one may be inside the folder of another.
    for version, folder in sorted(versions.items(), key=lambda pair: -len(pair[1].parts)):
        folder.rename(target / version)


def saved_models(tree: Path) -> list[Path]:
    return sorted({(tree / path).parent for path in files_in(tree) if path.name in _HEADS})


def _version(folder: Path, tree: Path) -> str:
    """Return the version. Existing numbers are kept, because the server serves the highest."""
    return folder.name if folder != tree and folder.name.isascii() and folder.name.isdigit() else _FIRST


def _what_it_is(tree: Path) -> str:
    keras = [path.name for path in files_in(tree) if path.suffix in {".h5", ".hdf5", ".keras"}]
    if keras:
        return f"TensorFlow Serving needs a SavedModel, but {keras[0]} is a Keras file: {_EXPORT}."
    return f"TensorFlow Serving needs a SavedModel, a folder with saved_model.pb in it: {_EXPORT}."
