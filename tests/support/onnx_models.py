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


def save_mixing(file: Path, kind: str = "FP32") -> Path:
    """Each row's answer depends on the others."""
    nodes = [
        helper.make_node("ReduceMax", ["features"], ["largest"], axes=[0], keepdims=1),
        helper.make_node("Sub", ["features", "largest"], ["scores"]),
    ]
    return _save(file, nodes, [_tensor("features", kind, ["rows", 2])], [_tensor("scores", kind, ["rows", 2])])


def save_quantized(file: Path, *, by_hand: bool = False) -> Path:
    """Rounds each number to a step that follows from the largest one of all rows. `by_hand`: no operator says so."""
    largest = [
        helper.make_node("Abs", ["features"], ["sizes"]),
        helper.make_node("ReduceMax", ["sizes"], ["largest"], keepdims=0),
        helper.make_node("Ceil", ["largest"], ["range"]),
        helper.make_node("Div", ["range", "steps"], ["step"]),
        helper.make_node("Div", ["features", "step"], ["parts"]),
        helper.make_node("Cast", ["parts"], ["whole"], to=TensorProto.INT32),
        helper.make_node("Cast", ["whole"], ["rounded"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["rounded", "step"], ["scores"]),
    ]
    ends = _tensor("features", "FP32", ["rows", 8]), _tensor("scores", "FP32", ["rows", 8])
    steps = numpy_helper.from_array(np.array(127, np.float32), "steps")
    return _save(file, largest if by_hand else _quantizing("scores"), [ends[0]], [ends[1]], [steps] if by_hand else ())


def _quantizing(output: str) -> list[Any]:
    return [
        helper.make_node("DynamicQuantizeLinear", ["features"], ["small", "step", "zero"]),
        helper.make_node("DequantizeLinear", ["small", "step", "zero"], [output]),
    ]


def save_branching(file: Path, *, quantizing: bool = False) -> Path:
    """Gives back the negative of what it takes; where that is huge the same, in few bits if it is `quantizing`."""
    ends = _tensor("done", "FP32", ["rows", 2]), _tensor("other", "FP32", ["rows", 2])
    same = [helper.make_node("Identity", ["features"], ["done"])]
    there = helper.make_graph(_quantizing("done") if quantizing else same, "there", [], [ends[0]])
    other = helper.make_graph([helper.make_node("Neg", ["features"], ["other"])], "other", [], [ends[1]])
    nodes = [
        helper.make_node("ReduceMax", ["features"], ["largest"], keepdims=0),
        helper.make_node("Greater", ["largest", "limit"], ["is_there"]),
        helper.make_node("If", ["is_there"], ["scores"], then_branch=there, else_branch=other),
    ]
    limit = numpy_helper.from_array(np.array(1e6, np.float32), "limit")
    ends = _tensor("features", "FP32", ["rows", 2]), _tensor("scores", "FP32", ["rows", 2])
    return _save(file, nodes, [ends[0]], [ends[1]], [limit])


def save_failing(file: Path) -> Path:
    """Can be loaded, and takes no input that fits."""
    shape = numpy_helper.from_array(np.array([7, 7], np.int64), "shape")
    nodes = [helper.make_node("Reshape", ["features", "shape"], ["scores"])]
    ends = _tensor("features", "FP32", ["rows", 2]), _tensor("scores", "FP32", [None, None])
    return _save(file, nodes, [ends[0]], [ends[1]], [shape])


def save_particular(file: Path, width: int) -> Path:
    """Takes rows of one width only, and does not say so."""
    weights = numpy_helper.from_array(np.ones((width, 2), np.float32), "weights")
    nodes = [helper.make_node("MatMul", ["features", "weights"], ["scores"])]
    ends = _tensor("features", "FP32", ["rows", "width"]), _tensor("scores", "FP32", ["rows", 2])
    return _save(file, nodes, [ends[0]], [ends[1]], [weights])


def save_number(file: Path) -> Path:
    """Takes one number."""
    nodes = [helper.make_node("Neg", ["number"], ["negative"])]
    return _save(file, nodes, [_tensor("number", "FP32", [])], [_tensor("negative", "FP32", [])])


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
