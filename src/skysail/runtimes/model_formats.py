"""Detection of the model file and its format, by content rather than by file extension.

The download and the model server use the same rules. Only headers and tables of contents are read, so no library of any
format is needed.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

import msgspec

from skysail.runtimes import not_a_model

# Python code that defines the module for weights.
CODE = "model.py"
_SUFFIXES = (".onnx", ".pt", ".pth", ".safetensors", ".pt2")
_KNOWN = ", ".join(_SUFFIXES)
_OTHERS = {
    b"\x89HDF": "HDF5, a Keras format: export the model to ONNX, or serve it as a TensorFlow SavedModel",
    b"GGUF": "GGUF, a llama.cpp format: export the model to ONNX",
    b"\x1f\x8b": "gzip: unpack the file, or name it .tar.gz if it is such an archive",
    b"PK": "a zip archive that PyTorch did not write: name it .zip if the model is in it",
}
_FOREIGN = {
    ".h5": "a Keras file",
    ".hdf5": "a Keras file",
    ".keras": "a Keras file",
    ".pb": "a TensorFlow file",
    ".tflite": "a TensorFlow Lite file",
    ".mar": "a TorchServe archive",
    ".pkl": "a pickle, which can run any code",
    ".joblib": "a pickle, which can run any code",
    ".gguf": "a llama.cpp file",
}
_PICKLE = b"\x80"
# ONNX: field number of the graph in a model, and sizes of fields with a fixed length.
_GRAPH = 7
_LENGTH_DELIMITED = 2
_FIXED = {1: 8, 5: 4}
_MAX_VARINT_BYTES = 10
# safetensors: size of the header length, which precedes the header.
_LENGTH_BYTES = 8


class NoModel(Exception):
    """Files that cannot be served. The text is a sentence with the fix."""


class Format(StrEnum):
    ONNX = "ONNX"
    SCRIPT = "TorchScript"
    WEIGHTS = "PyTorch weights"
    SAFETENSORS = "safetensors"
    EXPORTED = "a PyTorch exported program"


class FoundModel(msgspec.Struct, frozen=True):
    format: Format
    file: Path

    def beside(self, name: str) -> Path | None:
        path = self.file.with_name(name)
        return path if path.is_file() else None

    @property
    def missing_file(self) -> str | None:
        """Return the sentence about a missing file next to the model, or None."""
        if self.format not in {Format.WEIGHTS, Format.SAFETENSORS} or self.beside(CODE):
            return None
        return (
            f"{self.file.name} holds weights without code. Export the model to ONNX or TorchScript, or add {CODE} "
            "next to it, with a function make() that returns the module."
        )


def find(path: Path) -> FoundModel:
    """Find the model in a file or folder. Raises NoModel."""
    file = path if path.is_file() else _in_folder(path)
    return FoundModel(_format(file), file)


def _in_folder(folder: Path) -> Path:
    """Return the topmost model file. Of several, prefer `model.*`, then the format that is served fastest."""
    everything = sorted(file for file in folder.rglob("*") if file.is_file())
    files = [file for file in everything if file.suffix in _SUFFIXES]
    if not files:
        raise NoModel(_instead(everything))
    nearest = min(len(file.parts) for file in files)
    near = [file for file in files if len(file.parts) == nearest]
    called = [file for file in near if file.stem == "model"] or near
    if len({file.stem for file in called}) > 1:
        names = ", ".join(file.name for file in called)
        raise NoModel(f"There are several models ({names}): name one of them `model`, or remove the others.")
    return min(called, key=lambda file: _SUFFIXES.index(file.suffix))


def _instead(files: list[Path]) -> str:
    foreign = next((file for file in files if file.suffix.lower() in _FOREIGN), None)
    if foreign is None:
        return f"No file ends in {_KNOWN}: upload the model in one of these formats."
    return (
        f"No file ends in {_KNOWN}. {foreign.name} is {_FOREIGN[foreign.suffix.lower()]}: export the model to ONNX, or "
        "set the runtime that loads it."
    )


def _format(file: Path) -> Format:
    if file.stat().st_size == 0:
        raise NoModel(f"{file.name} is empty: upload it again.")
    if sentence := not_a_model.describe(file):
        raise NoModel(sentence)
    match file.suffix:
        case ".onnx" if _is_onnx(file):
            return Format.ONNX
        case ".safetensors" if _is_safetensors(file):
            return Format.SAFETENSORS
        case ".onnx" | ".safetensors":
            raise _other(file, f"not a complete {file.suffix} file")
        case _:
            return _of_torch(file)


def _of_torch(file: Path) -> Format:
    if not zipfile.is_zipfile(file):
        # Old PyTorch versions wrote a sequence of pickles instead of an archive.
        if not_a_model.head(file).startswith(_PICKLE):
            return Format.WEIGHTS
        raise _other(file, "not a complete PyTorch model")
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
    raise _other(file, "not a PyTorch model")


def _other(file: Path, what_not: str) -> NoModel:
    start = not_a_model.head(file)
    what = next((what for magic, what in _OTHERS.items() if start.startswith(magic)), "")
    if what:
        return NoModel(f"{file.name} is {what_not}. It begins with {not_a_model.excerpt(start)}, which is {what}.")
    return NoModel(
        f"{file.name} is {what_not}. It begins with {not_a_model.excerpt(start)}: upload it again, or correct its name."
    )


def _is_safetensors(file: Path) -> bool:
    with file.open("rb") as content:
        length = int.from_bytes(content.read(_LENGTH_BYTES), "little")
        return content.read(1) == b"{" and _LENGTH_BYTES + length <= file.stat().st_size


def _is_onnx(file: Path) -> bool:
    """Return whether the whole file is one protobuf message with a graph among its fields."""
    with file.open("rb") as content:
        try:
            return _GRAPH in set(_fields(content, file.stat().st_size))
        except ValueError:
            return False


def _fields(content: BinaryIO, size: int) -> Iterator[int]:
    """Yield the numbers of the outermost fields. Raises ValueError if the content is not protobuf."""
    while content.tell() < size:
        number, kind = divmod(_number(content), 8)
        if kind == 0:
            _number(content)
        else:
            length = _number(content) if kind == _LENGTH_DELIMITED else _FIXED.get(kind, size)
            content.seek(length, 1)
        if content.tell() > size or not number:
            raise ValueError(number)
        yield number


def _number(content: BinaryIO) -> int:
    """Read a varint: seven bits per byte, lowest first; the last byte is below 128."""
    value = 0
    for place in range(_MAX_VARINT_BYTES):
        byte = content.read(1)
        if not byte:
            raise ValueError(place)
        value |= (byte[0] & 127) << (7 * place)
        if byte[0] < 128:  # noqa: PLR2004  # the highest bit says that more follows
            return value
    raise ValueError(value)
