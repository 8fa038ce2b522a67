"""Layout for Triton: `MODEL/config.pbtxt` and `MODEL/VERSION/model.SUFFIX`, with a positive number as version.

Some formats describe their inputs and outputs and need no config.pbtxt; TorchScript does not.
"""

from __future__ import annotations

from pathlib import Path

from skysail.runtimes.fetch.errors import InvalidContent
from skysail.runtimes.fetch.layouts import passthrough, tensorflow
from skysail.runtimes.fetch.unpack.paths import files_in

_CONFIG = "config.pbtxt"
_FIRST = "1"
# File names that Triton expects for formats that need no configuration.
_NAMES = {".onnx": "model.onnx", ".plan": "model.plan", ".engine": "model.plan", ".xml": "model.xml"}
_NEEDS_CONFIG = (".pt", ".pth", ".torchscript", ".py", ".graphdef")
_FORM = f"a folder or archive with {_CONFIG} (name of the backend, inputs, outputs) and 1/model.*"


def lay_out(tree: Path, into: Path, name: str) -> None:
    top = _top(tree)
    if any((path / _CONFIG).is_file() for path in top.iterdir() if path.is_dir()):
        passthrough.unchanged(top, into, name)  # a model repository, maybe with several models
        return
    model = into / name
    model.mkdir()
    if _versions(top):
        passthrough.unchanged(top, model, name)
    elif (top / _CONFIG).is_file():
        (top / _CONFIG).rename(model / _CONFIG)
        _move_first(top, model / _FIRST)
    else:
        _lay_out_bare(top, model / _FIRST)


def _top(tree: Path) -> Path:
    """Return the folder without the outer folders of archives, unless it is a model of a repository."""
    inner = list(tree.iterdir())
    if len(inner) != 1 or not inner[0].is_dir() or _is_version(inner[0]) or (inner[0] / _CONFIG).is_file():
        return tree
    return _top(inner[0])


def _versions(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if _is_version(path)]


def _is_version(path: Path) -> bool:
    return path.is_dir() and path.name.isascii() and path.name.isdigit() and not path.name.startswith("0")


def _move_first(source: Path, target: Path) -> None:
    target.mkdir()
    passthrough.unchanged(source, target, "")


def _lay_out_bare(tree: Path, target: Path) -> None:
    saved = tensorflow.saved_models(tree)
    if len(saved) == 1:
        target.mkdir()
        saved[0].rename(target / "model.savedmodel")
        return
    heads = [tree / path for path in files_in(tree) if path.suffix in _NAMES]
    if len(heads) != 1:
        raise InvalidContent("UnsupportedFormat", _what_is_missing(tree, heads))
    head = heads[0]
    _move_first(head.parent, target)  # includes external weights, which the model refers to by name
    (target / head.name).rename(target / _NAMES[head.suffix])
    if (target / head.with_suffix(".bin").name).is_file() and head.suffix == ".xml":
        (target / head.with_suffix(".bin").name).rename(target / "model.bin")


def _what_is_missing(tree: Path, heads: list[Path]) -> str:
    if heads:
        names = ", ".join(path.name for path in heads)
        return f"There are several models ({names}): remove all but one, or provide {_FORM} for each."
    blind = [path.name for path in files_in(tree) if path.suffix in _NEEDS_CONFIG]
    if blind:
        return f"Triton cannot serve {blind[0]} without {_CONFIG}: provide {_FORM}."
    return f"There is no model that Triton serves without {_CONFIG} ({', '.join(_NAMES)}, SavedModel): provide {_FORM}."
