"""Layouts of models: one module per server, each with a function from a tree to a folder.

`tree` is the download, unpacked if it was an archive. Its files are moved, not copied, to `into`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from skysail.runtimes.fetch.layouts import model_server, passthrough, tensorflow, torchserve, triton

# Arguments: the tree, the folder to fill, the name of the model. Raises WrongContent.
Layout = Callable[[Path, Path, str], None]

LAYOUTS: Mapping[str, Layout] = {
    "file": model_server.lay_out,
    "onnx": model_server.lay_out_onnx,
    "folder": passthrough.as_folder,
    "tree": passthrough.as_it_is,
    "tensorflow": tensorflow.lay_out,
    "triton": triton.lay_out,
    "torchserve": torchserve.lay_out,
}
# Layouts that keep an archive packed.
PACKED = ("tree",)
