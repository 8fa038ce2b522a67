"""Which file is the model, and what is in it: by its content, because a suffix says little."""

from __future__ import annotations

import zipfile
from enum import StrEnum
from pathlib import Path

import msgspec

from skysail.runtimes.fastapi_pytorch.errors import WrongModel, WrongSetting

_SUFFIXES = (".onnx", ".pt", ".pth", ".safetensors", ".pt2")
_KNOWN = ", ".join(_SUFFIXES)


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


def find(path: Path) -> Found:
    """Raises WrongSetting where there is nothing, WrongModel where it is no model."""
    if not path.exists():
        raise WrongSetting(f"There is no {path}; MODEL_PATH must name a model's file, or a folder with one in it.")
    file = path if path.is_file() else _in_folder(path)
    return Found(_format(file), file)


def _in_folder(folder: Path) -> Path:
    """The nearest one. Of several, `model.*`; then the one that is served fastest."""
    files = sorted(file for file in folder.rglob("*") if file.suffix in _SUFFIXES and file.is_file())
    if not files:
        raise WrongModel(f"{folder} has no model: none of its files ends in {_KNOWN}.")
    nearest = min(len(file.parts) for file in files)
    near = [file for file in files if len(file.parts) == nearest]
    called = [file for file in near if file.stem == "model"] or near
    if len({file.stem for file in called}) > 1:
        names = ", ".join(file.name for file in called)
        raise WrongModel(f"{folder} has several models ({names}); name one of them `model`, or set MODEL_PATH to it.")
    return min(called, key=lambda file: _SUFFIXES.index(file.suffix))


def _format(file: Path) -> Format:
    if file.stat().st_size == 0:
        raise WrongModel(f"{file.name} is empty.")
    match file.suffix:
        case ".onnx":
            return Format.ONNX
        case ".safetensors":
            return Format.SAFETENSORS
        case _:
            return _of_torch(file)


def _of_torch(file: Path) -> Format:
    if not zipfile.is_zipfile(file):
        with file.open("rb") as content:
            start = content.read(2)
        # What PyTorch wrote before it had archives is a row of pickles.
        if start[:1] == b"\x80":
            return Format.WEIGHTS
        raise WrongModel(f"{file.name} is no model of PyTorch; it begins with {start!r}. Is it an error page?")
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
    raise WrongModel(f"{file.name} is an archive, and none that PyTorch has written.")
