"""Model layouts: one module per model server, each a function that fills the directory that the server reads.

`tree` is the downloaded and unpacked content. Its files are moved into `into`, not copied.
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
    "tree": passthrough.unchanged,
    "tensorflow": tensorflow.lay_out,
    "triton": triton.lay_out,
    "torchserve": torchserve.lay_out,
}
# Layouts that keep an archive packed.
PACKED = ("tree",)
