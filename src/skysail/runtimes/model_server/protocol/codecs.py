"""Parsing of requests and encoding of responses: `/predict` and the protocol's `infer`, in JSON."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import numpy as np
import orjson

from skysail.runtimes.model_server import tensors
from skysail.runtimes.model_server.errors import RequestError
from skysail.runtimes.model_server.models import Signature
from skysail.runtimes.model_server.protocol.input_validation import InferenceInput, InputValidator
from skysail.runtimes.model_server.tensors import Array

_T = TypeVar("_T")
_MAX_NESTING = 8
_MAX_DIMENSIONS = 32
_MATRIX = 2
# Lists nested without limit raise RecursionError.
_UNREADABLE = (msgspec.DecodeError, RecursionError)


class Codec(Protocol):
    """Request and response format of one path."""

    def read(self, body: bytes) -> InferenceInput:
        """Parse a request. Raises RequestError."""

    def write(self, inference_input: InferenceInput, outputs: Sequence[Array], /) -> bytes: ...


class Predict(msgspec.Struct, Generic[_T], frozen=True):
    """Body `{"features": [[1.0, 2.0]]}`: one row for each prediction."""

    features: _T


class PredictCodec:
    """Short form, for models with one input."""

    def __init__(self, signature: Signature, validator: InputValidator) -> None:
        self._signature = signature
        self._validator = validator
        self._dtype = signature.inputs[0].dtype
        self._rank = len(signature.inputs[0].shape) or _MATRIX
        self._kind = tensors.element(self._dtype)
        self._usual = self._decoder(self._rank)

    def read(self, body: bytes) -> InferenceInput:
        if len(self._signature.inputs) > 1:
            names = ", ".join(spec.name for spec in self._signature.inputs)
            raise RequestError(f"The model has several inputs ({names}): send them to /v2/models/<name>/infer.")
        try:
            features, rank = self._usual.decode(body).features, self._rank
        except _UNREADABLE:
            features, rank = self._unusual(body)
        return self._validator.admit((tensors.of_lists(features, rank, self._dtype),))

    def write(self, _: InferenceInput, outputs: Sequence[Array], /) -> bytes:
        if len(outputs) == 1:
            predictions: object = _contiguous(outputs[0])
        else:
            names = self._signature.output_names(len(outputs))
            predictions = {name: _contiguous(array) for name, array in zip(names, outputs, strict=True)}
        return orjson.dumps({"predictions": predictions}, option=orjson.OPT_SERIALIZE_NUMPY)

    def _unusual(self, body: bytes) -> tuple[Any, int]:
        """Parse a request of unusual depth, or reject an invalid one."""
        features = _decode(msgspec.json.Decoder(Predict[msgspec.Raw]), body).features
        rank = _depth(features)
        if rank == 0:
            raise RequestError('`features` must be a list of rows, such as {"features": [[1.0, 2.0]]}.')
        return _decode(self._decoder(rank), body).features, rank

    def _decoder(self, rank: int) -> msgspec.json.Decoder[Predict[Any]]:
        kind: Any = Predict
        return msgspec.json.Decoder(kind[tensors.nested(self._kind, rank)])


class InputTensor(msgspec.Struct, Generic[_T], frozen=True):
    """Input tensor: flat values or nested lists."""

    name: str
    shape: tuple[int, ...]
    datatype: str
    data: _T


class RequestedOutput(msgspec.Struct, frozen=True):
    """Requested output."""

    name: str


class Infer(msgspec.Struct, Generic[_T], frozen=True):
    """Request of the Open Inference Protocol. Parameters are accepted and ignored."""

    inputs: tuple[InputTensor[_T], ...]
    id: str | None = None
    outputs: tuple[RequestedOutput, ...] = ()


class InferCodec:
    """Open Inference Protocol, version 2."""

    def __init__(self, name: str, version: str, signature: Signature, validator: InputValidator) -> None:
        self._head = {"model_name": name} | ({"model_version": version} if version else {})
        self._signature = signature
        self._validator = validator
        self._outputs = signature.output_names(len(signature.outputs))
        # Fast path: most models take floats and most clients send them flat.
        self._flat = msgspec.json.Decoder(Infer[list[float]])
        self._any = msgspec.json.Decoder(Infer[msgspec.Raw])

    def read(self, body: bytes) -> InferenceInput:
        request, arrays = self._read(body)
        for requested_output in request.outputs:
            if self._outputs and requested_output.name not in self._outputs:
                raise RequestError(
                    f"The model has no output `{requested_output.name}`: use {', '.join(self._outputs)}."
                )
        inference_input = self._validator.admit(arrays)
        desired = tuple(requested_output.name for requested_output in request.outputs)
        return (
            msgspec.structs.replace(inference_input, id=request.id, outputs=desired)
            if request.id or desired
            else inference_input
        )

    def write(self, inference_input: InferenceInput, outputs: Sequence[Array], /) -> bytes:
        names = self._signature.output_names(len(outputs))
        described = [
            {"name": name, "datatype": tensors.NAMES[array.dtype], "shape": array.shape, "data": array.ravel()}
            for name, array in zip(names, outputs, strict=True)
            if not inference_input.outputs or name in inference_input.outputs
        ]
        answer = (
            self._head | ({"id": inference_input.id} if inference_input.id is not None else {}) | {"outputs": described}
        )
        return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)

    def _read(self, body: bytes) -> tuple[Infer[Any], tuple[Array, ...]]:
        try:
            flat = self._flat.decode(body)
        except _UNREADABLE:
            pass  # nested lists, integers or invalid: the slow path distinguishes them
        else:
            if all(input_tensor.datatype.startswith("FP") for input_tensor in flat.inputs):
                return flat, self._arrays(flat, _of_flat)
        request = _decode(self._any, body)
        return request, self._arrays(request, _of_raw)

    def _arrays(self, request: Infer[Any], array_of: Any) -> tuple[Array, ...]:
        input_tensor = {tensor.name: tensor for tensor in request.inputs}
        specs = self._signature.inputs
        if len(specs) == 1 == len(request.inputs):
            # With a single input the name does not matter: names of TorchScript inputs are arbitrary.
            return (self._validator.cast(array_of(request.inputs[0], _dtype(request.inputs[0])), specs[0]),)
        missing = [spec.name for spec in specs if spec.name not in input_tensor]
        unknown = sorted(input_tensor.keys() - {spec.name for spec in specs})
        if missing or unknown or len(input_tensor) != len(request.inputs):
            names = ", ".join(spec.name for spec in specs)
            raise RequestError(
                f"The request has inputs {', '.join(input_tensor) or 'none'}, but the model takes {names}, each once."
            )
        return tuple(
            self._validator.cast(array_of(input_tensor[spec.name], _dtype(input_tensor[spec.name])), spec)
            for spec in specs
        )


def _dtype(input_tensor: InputTensor[Any]) -> np.dtype[Any]:
    dtype = tensors.TYPES.get(input_tensor.datatype)
    if dtype is None:
        raise RequestError(f"Datatype `{input_tensor.datatype}` is unknown: use one of {', '.join(tensors.TYPES)}.")
    return dtype


def _of_flat(input_tensor: InputTensor[list[float]], dtype: np.dtype[Any]) -> Array:
    _require_count(input_tensor, len(input_tensor.data))
    return tensors.of_values(input_tensor.data, input_tensor.shape, dtype)


def _of_raw(input_tensor: InputTensor[msgspec.Raw], dtype: np.dtype[Any]) -> Array:
    depth = max(1, _depth(input_tensor.data))
    kind = tensors.nested(tensors.element(dtype), depth)
    values = _decode(msgspec.json.Decoder(kind), input_tensor.data)
    array = tensors.of_lists(values, depth, dtype)
    _require_count(input_tensor, array.size)
    if depth > 1 and array.shape != input_tensor.shape:
        raise RequestError(
            f"`data` of `{input_tensor.name}` has shape {list(array.shape)}, but `shape` is {list(input_tensor.shape)}."
        )
    return array.reshape(input_tensor.shape)


def _require_count(input_tensor: InputTensor[Any], count: int) -> None:
    if len(input_tensor.shape) > _MAX_DIMENSIONS:
        raise RequestError(
            f"`{input_tensor.name}` has {len(input_tensor.shape)} dimensions: send at most {_MAX_DIMENSIONS}."
        )
    if count == 0:
        # An empty tensor could claim any sizes, even more than an array can have.
        raise RequestError(f"`{input_tensor.name}` is empty: send at least one row.")
    if min(input_tensor.shape, default=0) < 0 or count != prod(input_tensor.shape):
        raise RequestError(
            f"`{input_tensor.name}` has {count} values, which do not fit its shape {list(input_tensor.shape)}."
        )


def _decode(decoder: msgspec.json.Decoder[_T], body: bytes | msgspec.Raw) -> _T:
    try:
        return decoder.decode(body)
    except _UNREADABLE as error:
        raise RequestError(f"The request cannot be parsed: {error}.") from error


def _depth(data: msgspec.Raw) -> int:
    """Return the depth of nested lists, by the leading brackets."""
    start = bytes(memoryview(data)[:256]).translate(None, b" \t\r\n")
    depth = len(start) - len(start.lstrip(b"["))
    if depth > _MAX_NESTING:
        raise RequestError(f"Lists are nested {depth} deep: send at most {_MAX_NESTING} levels.")
    return depth


def _contiguous(array: Array) -> Array:
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)
