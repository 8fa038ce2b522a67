"""For Skysail's own server: a folder in which it finds one model, of a format that it loads."""

from __future__ import annotations

from pathlib import Path

from skysail.runtimes import model_formats
from skysail.runtimes.fetch.errors import WrongContent
from skysail.runtimes.fetch.layouts import passthrough
from skysail.runtimes.fetch.unpack.archives import readable
from skysail.runtimes.model_formats import Format, Found


def lay_out(tree: Path, into: Path, name: str) -> None:
    found = _found(tree, into, name)
    if found.lack:
        raise WrongContent("UnsupportedFormat", found.lack)


def lay_out_onnx(tree: Path, into: Path, name: str) -> None:
    """For the server that has no PyTorch."""
    found = _found(tree, into, name)
    if found.format is not Format.ONNX:
        raise WrongContent(
            "UnsupportedFormat",
            f"{found.file.name} is {found.format}, and this server loads ONNX alone, without PyTorch: export the model "
            "to ONNX, or serve it by fastapi-pytorch (of an MLModel: framework pytorch).",
        )


def _found(tree: Path, into: Path, name: str) -> Found:
    passthrough.as_folder(tree, into, name)
    try:
        # Files of PyTorch are zip files, too.
        with readable("The file of the model is damaged: upload it again."):
            return model_formats.find(into)
    except model_formats.NoModel as error:
        raise WrongContent("UnsupportedFormat", str(error)) from error
