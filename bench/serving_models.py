"""The models of the benchmark, in both forms, and requests for them: random weights, the same for everybody.

`S` is a network as small as they come, 16-32-4: what is measured is the server. `M` has 21 million parameters: there
the model is most of it.
"""

from __future__ import annotations

import subprocess
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH, CLASSES = 16, 4
SIZES = {"S": (WIDTH, 32, CLASSES), "M": (WIDTH, *[2048] * 6, CLASSES)}
ROWS = (1, 32)
# How a contestant wants its request.
FEATURES, PROTOCOL, INSTANCES = "features", "protocol", "instances"
_SCRIPT = Path(__file__).parent / "peers" / "serving" / "script.py"


def make(folder: Path, python: str) -> None:
    """`python` has PyTorch."""
    random = np.random.default_rng(0)
    for name, sizes in SIZES.items():
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        layers = [
            ((random.normal(size=(before, after)) / before**0.5).astype(np.float32), np.zeros(after, np.float32))
            for before, after in pairwise(sizes)
        ]
        np.savez(place / "weights.npz", *(array for layer in layers for array in layer))
        onnx.save(_onnx(layers), place / "model.onnx")
        subprocess.run([python, _SCRIPT, place / "weights.npz", place / "model.pt"], check=True)
    for rows in ROWS:
        for form in (FEATURES, PROTOCOL, INSTANCES):
            body(folder, form, rows).write_bytes(_request(form, rows))


def body(folder: Path, form: str, rows: int) -> Path:
    return folder / f"{form}-{rows}.json"


def _request(form: str, rows: int) -> bytes:
    features = np.random.default_rng(rows).normal(size=(rows, WIDTH)).astype(np.float32)
    if form != PROTOCOL:
        return msgspec.json.encode({form: features.tolist()})
    tensor = {"name": "features", "shape": features.shape, "datatype": "FP32", "data": features.ravel().tolist()}
    return msgspec.json.encode({"inputs": [tensor]})


def _onnx(layers: list[tuple[np.ndarray, np.ndarray]]) -> onnx.ModelProto:
    nodes, weights, given = [], [], "features"
    for place, (matrix, bias) in enumerate(layers):
        weights += [numpy_helper.from_array(matrix, f"w{place}"), numpy_helper.from_array(bias, f"b{place}")]
        is_last = place == len(layers) - 1
        made = "scores" if is_last else f"g{place}"
        nodes.append(helper.make_node("Gemm", [given, f"w{place}", f"b{place}"], [made]))
        if not is_last:
            given = f"r{place}"
            nodes.append(helper.make_node("Relu", [made], [given]))
    ends = (("features", WIDTH), ("scores", CLASSES))
    first, last = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", size]) for name, size in ends)
    graph = helper.make_graph(nodes, "network", [first], [last], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
