"""Layout for Skysail's own server: a folder with one model in a format that the server loads."""

from __future__ import annotations

from pathlib import Path

from skysail.runtimes import model_formats
from skysail.runtimes.fetch.errors import InvalidContent
from skysail.runtimes.fetch.layouts import passthrough
from skysail.runtimes.fetch.unpack.archives import readable
from skysail.runtimes.model_formats import Format, FoundModel


def lay_out(tree: Path, into: Path, name: str) -> None:
    found_model = _found(tree, into, name)
    if found_model.missing_file:
        raise InvalidContent("UnsupportedFormat", found_model.missing_file)


def lay_out_onnx(tree: Path, into: Path, name: str) -> None:
    """Lay out a model for the server without PyTorch."""
    found_model = _found(tree, into, name)
    if found_model.format is not Format.ONNX:
        raise InvalidContent(
            "UnsupportedFormat",
            f"{found_model.file.name} is {found_model.format}, but this server loads only ONNX: export the model "
            "to ONNX, or use "
            "fastapi-pytorch (for an MLModel: framework pytorch).",
        )


def _found(tree: Path, into: Path, name: str) -> FoundModel:
    passthrough.as_folder(tree, into, name)
    try:
        # PyTorch files are zip files, so a damaged one raises the same errors.
        with readable("The model file is damaged: upload it again."):
            return model_formats.find(into)
    except model_formats.NoModel as error:
        raise InvalidContent("UnsupportedFormat", str(error)) from error
