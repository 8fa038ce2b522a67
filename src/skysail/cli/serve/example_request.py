"""A request that the model accepts, from the inputs that its server describes. Pure."""

from __future__ import annotations

import math
from typing import Any

import msgspec

_MAX_VALUES = 64
_ZEROS: dict[str, Any] = {"BOOL": False, "BYTES": ""}


class _Tensor(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]


class _Metadata(msgspec.Struct):
    inputs: list[_Tensor] = []


def example(metadata: bytes) -> str | None:
    """Return the data for `skysail predict`, or None if the inputs are unknown or too large to be typed."""
    try:
        inputs = msgspec.json.decode(metadata, type=_Metadata).inputs
    except msgspec.DecodeError:
        return None
    if not inputs or any(math.prod(_fixed(tensor.shape)) > _MAX_VALUES for tensor in inputs):
        return None
    if len(inputs) == 1 and inputs[0].datatype.startswith(("FP", "INT", "UINT")) and len(inputs[0].shape) > 1:
        return msgspec.json.encode(_nested(_fixed(inputs[0].shape), _zero(inputs[0].datatype))).decode()
    rows = [
        {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": _fixed(tensor.shape),
            "data": [_zero(tensor.datatype)] * math.prod(_fixed(tensor.shape)),
        }
        for tensor in inputs
    ]
    return msgspec.json.encode({"inputs": rows}).decode()


def _fixed(shape: list[int]) -> list[int]:
    """Return the shape with 1 for dimensions that may have any size."""
    return [size if size > 0 else 1 for size in shape]


def _zero(datatype: str) -> Any:
    return _ZEROS.get(datatype, 0.0 if datatype.startswith("FP") else 0)


def _nested(shape: list[int], value: Any) -> Any:
    return value if not shape else [_nested(shape[1:], value) for _ in range(shape[0])]
