"""ONNX models. This module must not import PyTorch, which would cost ten times the memory and most of the startup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnxruntime

from skysail.runtimes.model_formats import FoundModel
from skysail.runtimes.model_server.errors import InvalidModel
from skysail.runtimes.model_server.models import Signature, onnx_graph, signature
from skysail.runtimes.model_server.tensors import ANY, Array, Spec

_TYPES = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
}
# Errors are raised, so logging them is redundant.
_FATAL_ONLY = 4


class OnnxModel:
    platform = "onnx_onnxv1"

    def __init__(self, found_model: FoundModel, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = _FATAL_ONLY
        # Spinning threads would take CPU time from other requests.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        available = onnxruntime.get_available_providers()
        desired = [name for name in ("CUDAExecutionProvider", "CPUExecutionProvider") if name in available]
        self._session = onnxruntime.InferenceSession(str(found_model.file), options, providers=desired)
        own = tuple(map(_spec, self._session.get_inputs()))
        inputs = _input_specs(own, signature.written(found_model))
        self._names = [spec.name for spec in inputs]
        self.signature = Signature(inputs=inputs, outputs=tuple(map(_spec, self._session.get_outputs())))
        self.traits = onnx_graph.traits(found_model.file)

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        found: list[Array] = self._session.run(None, dict(zip(self._names, arrays, strict=True)))
        return found


def _spec(node: Any) -> Spec:
    datatype = _TYPES.get(node.type)
    if datatype is None:
        raise InvalidModel(f"`{node.name}` of the model is a {node.type}: only tensors of numbers can be served.")
    shape = tuple(size if isinstance(size, int) and size > 0 else ANY for size in node.shape or ())
    return Spec(name=node.name, datatype=datatype, shape=shape)


def _input_specs(own: tuple[Spec, ...], written: Signature | None) -> tuple[Spec, ...]:
    """Return the inputs. signature.json may add sizes and dimensions that the graph leaves open."""
    if written is None:
        return own
    if len(own) != len(written.inputs) or {(spec.name, spec.datatype) for spec in own} != {
        (spec.name, spec.datatype) for spec in written.inputs
    }:
        names = ", ".join(f"{spec.name} ({spec.datatype})" for spec in own)
        raise InvalidModel(f"{signature.FILE} has other inputs than the model: use {names}.")
    return written.inputs
