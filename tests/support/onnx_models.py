"""Small ONNX models with known weights, and what numpy makes of the same input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH, HIDDEN, CLASSES = 16, 32, 4

_KINDS = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
}


class Network:
    """Two layers."""

    def __init__(self, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.first = random.normal(size=(WIDTH, HIDDEN)).astype(np.float32)
        self.second = random.normal(size=(HIDDEN, CLASSES)).astype(np.float32)

    def predict(self, rows: Any) -> Any:
        return np.maximum(np.asarray(rows, np.float32) @ self.first, 0) @ self.second

    def save(self, file: Path, *, rows: int | str = "rows") -> Path:
        nodes = [
            helper.make_node("MatMul", ["features", "first"], ["hidden"]),
            helper.make_node("Relu", ["hidden"], ["positive"]),
            helper.make_node("MatMul", ["positive", "second"], ["scores"]),
        ]
        weights = [numpy_helper.from_array(self.first, "first"), numpy_helper.from_array(self.second, "second")]
        ends = _tensor("features", "FP32", [rows, WIDTH]), _tensor("scores", "FP32", [rows, CLASSES])
        return _save(file, nodes, [ends[0]], [ends[1]], weights)


def save_echo(file: Path) -> Path:
    """One input and one output of each type, which it gives back."""
    nodes = [helper.make_node("Identity", [name.lower()], [f"same_{name.lower()}"]) for name in _KINDS]
    inputs = [_tensor(name.lower(), name, ["rows", 2]) for name in _KINDS]
    outputs = [_tensor(f"same_{name.lower()}", name, ["rows", 2]) for name in _KINDS]
    return _save(file, nodes, inputs, outputs)


def save_mixing(file: Path) -> Path:
    """Each row's answer depends on the others."""
    nodes = [
        helper.make_node("ReduceMean", ["features"], ["mean"], axes=[0], keepdims=1),
        helper.make_node("Sub", ["features", "mean"], ["scores"]),
    ]
    return _save(file, nodes, [_tensor("features", "FP32", ["rows", 2])], [_tensor("scores", "FP32", ["rows", 2])])


def save_failing(file: Path) -> Path:
    """Can be loaded, and takes no input that fits."""
    shape = numpy_helper.from_array(np.array([7, 7], np.int64), "shape")
    nodes = [helper.make_node("Reshape", ["features", "shape"], ["scores"])]
    ends = _tensor("features", "FP32", ["rows", 2]), _tensor("scores", "FP32", [None, None])
    return _save(file, nodes, [ends[0]], [ends[1]], [shape])


def save_picky(file: Path) -> Path:
    """Looks up rows of a table: an index outside of it is an error of the model's own."""
    table = numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(3, 2), "table")
    nodes = [helper.make_node("Gather", ["table", "index"], ["rows"], axis=0)]
    ends = _tensor("index", "INT64", ["count"]), _tensor("rows", "FP32", ["count", 2])
    return _save(file, nodes, [ends[0]], [ends[1]], [table])


def _tensor(name: str, kind: str, shape: list[Any]) -> Any:
    return helper.make_tensor_value_info(name, _KINDS[kind], shape)


def _save(file: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: Any = ()) -> Path:
    graph = helper.make_graph(nodes, "test", inputs, outputs, list(weights))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), file)
    return file
