"""Which file is the model, and what is in it: by its content, because a suffix says little.

Asked twice by one set of rules: when a model was downloaded, and when it is loaded. Reads heads and tables of contents
only, and needs no library of any format.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

import msgspec

from skysail.runtimes import not_a_model

# What weights belong to.
CODE = "model.py"
_SUFFIXES = (".onnx", ".pt", ".pth", ".safetensors", ".pt2")
_KNOWN = ", ".join(_SUFFIXES)
_OTHERS = {
    b"\x89HDF": "HDF5, as Keras writes it; export the model to ONNX, or serve it as a SavedModel of TensorFlow",
    b"GGUF": "GGUF, which is for llama.cpp and its like; export the model to ONNX",
    b"\x1f\x8b": "packed by gzip; unpack it, or name it .tar.gz if it is such an archive",
    b"PK": "a zip archive, and none that PyTorch has written; name it .zip if the model is in it",
}
_FOREIGN = {
    ".h5": "a Keras file",
    ".hdf5": "a Keras file",
    ".keras": "a Keras file",
    ".pb": "a file of TensorFlow",
    ".tflite": "a file of TensorFlow Lite",
    ".mar": "an archive of TorchServe",
    ".pkl": "a pickle, which runs whatever is in it",
    ".joblib": "a pickle, which runs whatever is in it",
    ".gguf": "a file of llama.cpp",
}
_PICKLE = b"\x80"
# Of ONNX: the field of a model that is its graph, and how many bytes a field has whose length is fixed.
_GRAPH = 7
_LENGTH_TOLD = 2
_FIXED = {1: 8, 5: 4}
_LONGEST_NUMBER = 10
# Of safetensors: the header comes after its length.
_LENGTH_BYTES = 8


class NoModel(Exception):
    """These files cannot be served. Its text is a sentence with the fix in it."""


class Format(StrEnum):
    ONNX = "ONNX"
    SCRIPT = "TorchScript"
    WEIGHTS = "weights of PyTorch"
    SAFETENSORS = "safetensors"
    EXPORTED = "exported program of PyTorch"


class Found(msgspec.Struct, frozen=True):
    format: Format
    file: Path

    def beside(self, name: str) -> Path | None:
        path = self.file.with_name(name)
        return path if path.is_file() else None

    @property
    def lack(self) -> str | None:
        """The sentence about what is missing beside it."""
        if self.format not in {Format.WEIGHTS, Format.SAFETENSORS} or self.beside(CODE):
            return None
        return (
            f"{self.file.name} holds weights and not what to do with them. Export the model to ONNX or TorchScript, "
            f"or put {CODE} beside it, with a function make() that returns the module they belong to."
        )


def find(path: Path) -> Found:
    """`path` is a file, or a folder with one in it. Raises NoModel."""
    file = path if path.is_file() else _in_folder(path)
    return Found(_format(file), file)


def _in_folder(folder: Path) -> Path:
    """The nearest one. Of several, `model.*`; then the one that is served fastest."""
    everything = sorted(file for file in folder.rglob("*") if file.is_file())
    files = [file for file in everything if file.suffix in _SUFFIXES]
    if not files:
        raise NoModel(f"There is no model: no file ends in {_KNOWN}.{_instead(everything)}")
    nearest = min(len(file.parts) for file in files)
    near = [file for file in files if len(file.parts) == nearest]
    called = [file for file in near if file.stem == "model"] or near
    if len({file.stem for file in called}) > 1:
        names = ", ".join(file.name for file in called)
        raise NoModel(f"There are several models ({names}): name one of them `model`, or leave the one that is meant.")
    return min(called, key=lambda file: _SUFFIXES.index(file.suffix))


def _instead(files: list[Path]) -> str:
    foreign = next((file for file in files if file.suffix.lower() in _FOREIGN), None)
    if foreign is None:
        return ""
    return (
        f" {foreign.name} is {_FOREIGN[foreign.suffix.lower()]}: export the model to ONNX, or choose its own runtime."
    )


def _format(file: Path) -> Format:
    if file.stat().st_size == 0:
        raise NoModel(f"{file.name} is empty: upload it again.")
    if sentence := not_a_model.told(file):
        raise NoModel(sentence)
    match file.suffix:
        case ".onnx" if _is_onnx(file):
            return Format.ONNX
        case ".safetensors" if _is_safetensors(file):
            return Format.SAFETENSORS
        case ".onnx" | ".safetensors":
            raise _other(file, f"no whole {file.suffix} file")
        case _:
            return _of_torch(file)


def _of_torch(file: Path) -> Format:
    if not zipfile.is_zipfile(file):
        # What PyTorch wrote before it had archives is a row of pickles.
        if not_a_model.head(file).startswith(_PICKLE):
            return Format.WEIGHTS
        raise _other(file, "no model of PyTorch, or not all of one")
    with zipfile.ZipFile(file) as archive:
        members = {name.partition("/")[2] for name in archive.namelist()}
    if any(name.startswith("models/") for name in members):
        return Format.EXPORTED
    if "constants.pkl" in members and any(name.startswith("code/") for name in members):
        return Format.SCRIPT
    if "data.pkl" in members:
        return Format.WEIGHTS
    if "serialized_exported_program.json" in members or file.suffix == ".pt2":
        return Format.EXPORTED
    raise _other(file, "no model of PyTorch")


def _other(file: Path, what_not: str) -> NoModel:
    start = not_a_model.head(file)
    what = next((f", which is {what}" for magic, what in _OTHERS.items() if start.startswith(magic)), "")
    fix = "" if what else ": upload it again, or correct its name"
    return NoModel(f"{file.name} is {what_not}; it begins with {not_a_model.shown(start)}{what}{fix}.")


def _is_safetensors(file: Path) -> bool:
    with file.open("rb") as content:
        length = int.from_bytes(content.read(_LENGTH_BYTES), "little")
        return content.read(1) == b"{" and _LENGTH_BYTES + length <= file.stat().st_size


def _is_onnx(file: Path) -> bool:
    """Whether it is a message of protobuf up to its very end, with a graph among its fields."""
    with file.open("rb") as content:
        try:
            return _GRAPH in set(_fields(content, file.stat().st_size))
        except ValueError:
            return False


def _fields(content: BinaryIO, size: int) -> Iterator[int]:
    """The numbers of the outermost fields. Raises ValueError where there is something else."""
    while content.tell() < size:
        number, kind = divmod(_number(content), 8)
        if kind == 0:
            _number(content)
        else:
            length = _number(content) if kind == _LENGTH_TOLD else _FIXED.get(kind, size)
            content.seek(length, 1)
        if content.tell() > size or not number:
            raise ValueError(number)
        yield number


def _number(content: BinaryIO) -> int:
    """Seven bits in each byte, the lowest first; the last byte is below 128."""
    value = 0
    for place in range(_LONGEST_NUMBER):
        byte = content.read(1)
        if not byte:
            raise ValueError(place)
        value |= (byte[0] & 127) << (7 * place)
        if byte[0] < 128:  # noqa: PLR2004  # the highest bit says that more follows
            return value
    raise ValueError(value)
