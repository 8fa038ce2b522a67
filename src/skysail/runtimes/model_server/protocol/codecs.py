"""Parsing of requests and encoding of responses: `/predict` and the protocol's `infer`, in JSON."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import numpy as np
import orjson

from skysail.runtimes.model_server import tensors
from skysail.runtimes.model_server.errors import Refused
from skysail.runtimes.model_server.models import Signature
from skysail.runtimes.model_server.protocol.input_validation import Intake, Work
from skysail.runtimes.model_server.tensors import Array

_T = TypeVar("_T")
_DEEPEST = 8
_MOST_DIMENSIONS = 32
_MATRIX = 2
# Lists nested without limit raise RecursionError.
_UNREADABLE = (msgspec.DecodeError, RecursionError)


class Form(Protocol):
    """Request and response format of one path."""

    def read(self, body: bytes) -> Work:
        """Parse a request. Raises Refused."""

    def write(self, work: Work, outputs: Sequence[Array], /) -> bytes: ...


class Predict(msgspec.Struct, Generic[_T], frozen=True):
    """Body `{"features": [[1.0, 2.0]]}`: one row for each prediction."""

    features: _T


class PredictForm:
    """Short form, for models with one input."""

    def __init__(self, signature: Signature, intake: Intake) -> None:
        self._signature = signature
        self._intake = intake
        self._dtype = signature.inputs[0].dtype
        self._rank = len(signature.inputs[0].shape) or _MATRIX
        self._kind = tensors.element(self._dtype)
        self._usual = self._decoder(self._rank)

    def read(self, body: bytes) -> Work:
        if len(self._signature.inputs) > 1:
            names = ", ".join(spec.name for spec in self._signature.inputs)
            raise Refused(f"The model has several inputs ({names}): send them to /v2/models/<name>/infer.")
        try:
            features, rank = self._usual.decode(body).features, self._rank
        except _UNREADABLE:
            features, rank = self._unusual(body)
        return self._intake.admit((tensors.of_lists(features, rank, self._dtype),))

    def write(self, _: Work, outputs: Sequence[Array], /) -> bytes:
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
            raise Refused('`features` must be a list of rows, such as {"features": [[1.0, 2.0]]}.')
        return _decode(self._decoder(rank), body).features, rank

    def _decoder(self, rank: int) -> msgspec.json.Decoder[Predict[Any]]:
        kind: Any = Predict
        return msgspec.json.Decoder(kind[tensors.nested(self._kind, rank)])


class Given(msgspec.Struct, Generic[_T], frozen=True):
    """Input tensor: flat values or nested lists."""

    name: str
    shape: tuple[int, ...]
    datatype: str
    data: _T


class Wished(msgspec.Struct, frozen=True):
    """Requested output."""

    name: str


class Infer(msgspec.Struct, Generic[_T], frozen=True):
    """Request of the Open Inference Protocol. Parameters are accepted and ignored."""

    inputs: tuple[Given[_T], ...]
    id: str | None = None
    outputs: tuple[Wished, ...] = ()


class InferForm:
    """Open Inference Protocol, version 2."""

    def __init__(self, name: str, version: str, signature: Signature, intake: Intake) -> None:
        self._head = {"model_name": name} | ({"model_version": version} if version else {})
        self._signature = signature
        self._intake = intake
        self._outputs = signature.output_names(len(signature.outputs))
        # Fast path: most models take floats and most clients send them flat.
        self._flat = msgspec.json.Decoder(Infer[list[float]])
        self._any = msgspec.json.Decoder(Infer[msgspec.Raw])

    def read(self, body: bytes) -> Work:
        request, arrays = self._read(body)
        for wished in request.outputs:
            if self._outputs and wished.name not in self._outputs:
                raise Refused(f"The model has no output `{wished.name}`: use {', '.join(self._outputs)}.")
        work = self._intake.admit(arrays)
        wanted = tuple(wished.name for wished in request.outputs)
        return msgspec.structs.replace(work, id=request.id, outputs=wanted) if request.id or wanted else work

    def write(self, work: Work, outputs: Sequence[Array], /) -> bytes:
        names = self._signature.output_names(len(outputs))
        told = [
            {"name": name, "datatype": tensors.NAMES[array.dtype], "shape": array.shape, "data": array.ravel()}
            for name, array in zip(names, outputs, strict=True)
            if not work.outputs or name in work.outputs
        ]
        answer = self._head | ({"id": work.id} if work.id is not None else {}) | {"outputs": told}
        return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)

    def _read(self, body: bytes) -> tuple[Infer[Any], tuple[Array, ...]]:
        try:
            flat = self._flat.decode(body)
        except _UNREADABLE:
            pass  # nested lists, integers or invalid: the slow path distinguishes them
        else:
            if all(given.datatype.startswith("FP") for given in flat.inputs):
                return flat, self._arrays(flat, _of_flat)
        request = _decode(self._any, body)
        return request, self._arrays(request, _of_raw)

    def _arrays(self, request: Infer[Any], array_of: Any) -> tuple[Array, ...]:
        given = {tensor.name: tensor for tensor in request.inputs}
        specs = self._signature.inputs
        if len(specs) == 1 == len(request.inputs):
            # With a single input the name does not matter: names of TorchScript inputs are arbitrary.
            return (self._intake.cast(array_of(request.inputs[0], _dtype(request.inputs[0])), specs[0]),)
        missing = [spec.name for spec in specs if spec.name not in given]
        unknown = sorted(given.keys() - {spec.name for spec in specs})
        if missing or unknown or len(given) != len(request.inputs):
            names = ", ".join(spec.name for spec in specs)
            raise Refused(
                f"The request has inputs {', '.join(given) or 'none'}, but the model takes {names}, each once."
            )
        return tuple(self._intake.cast(array_of(given[spec.name], _dtype(given[spec.name])), spec) for spec in specs)


def _dtype(given: Given[Any]) -> np.dtype[Any]:
    dtype = tensors.TYPES.get(given.datatype)
    if dtype is None:
        raise Refused(f"Datatype `{given.datatype}` is unknown: use one of {', '.join(tensors.TYPES)}.")
    return dtype


def _of_flat(given: Given[list[float]], dtype: np.dtype[Any]) -> Array:
    _require_count(given, len(given.data))
    return tensors.of_values(given.data, given.shape, dtype)


def _of_raw(given: Given[msgspec.Raw], dtype: np.dtype[Any]) -> Array:
    depth = max(1, _depth(given.data))
    kind = tensors.nested(tensors.element(dtype), depth)
    values = _decode(msgspec.json.Decoder(kind), given.data)
    array = tensors.of_lists(values, depth, dtype)
    _require_count(given, array.size)
    if depth > 1 and array.shape != given.shape:
        raise Refused(f"`data` of `{given.name}` has shape {list(array.shape)}, but `shape` is {list(given.shape)}.")
    return array.reshape(given.shape)


def _require_count(given: Given[Any], count: int) -> None:
    if len(given.shape) > _MOST_DIMENSIONS:
        raise Refused(f"`{given.name}` has {len(given.shape)} dimensions: send at most {_MOST_DIMENSIONS}.")
    if count == 0:
        # An empty tensor could claim any sizes, even more than an array can have.
        raise Refused(f"`{given.name}` is empty: send at least one row.")
    if min(given.shape, default=0) < 0 or count != prod(given.shape):
        raise Refused(f"`{given.name}` has {count} values, which do not fit its shape {list(given.shape)}.")


def _decode(decoder: msgspec.json.Decoder[_T], body: bytes | msgspec.Raw) -> _T:
    try:
        return decoder.decode(body)
    except _UNREADABLE as error:
        raise Refused(f"The request cannot be parsed: {error}.") from error


def _depth(data: msgspec.Raw) -> int:
    """Return the depth of nested lists, by the leading brackets."""
    start = bytes(memoryview(data)[:256]).translate(None, b" \t\r\n")
    depth = len(start) - len(start.lstrip(b"["))
    if depth > _DEEPEST:
        raise Refused(f"Lists are nested {depth} deep: send at most {_DEEPEST} levels.")
    return depth


def _contiguous(array: Array) -> Array:
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)
