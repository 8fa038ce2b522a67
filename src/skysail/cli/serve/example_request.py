"""A request that the model accepts, from the inputs that its server describes. Pure."""

from __future__ import annotations

import math
import shlex
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


class Example(msgspec.Struct, frozen=True):
    """Data for `skysail predict`, or a Python program that prints data too large to be typed. Neither if unknown."""

    data: str = ""
    program: str = ""


def example(metadata: bytes) -> Example:
    """Return an example request of zeros. Its data are empty if the server does not describe its inputs."""
    try:
        inputs = msgspec.json.decode(metadata, type=_Metadata).inputs
    except msgspec.DecodeError:
        return Example()
    if not inputs:
        return Example()
    if any(math.prod(_fixed(tensor.shape)) > _MAX_VALUES for tensor in inputs):
        return Example(program=_program(inputs))
    if len(inputs) == 1 and inputs[0].datatype.startswith(("FP", "INT", "UINT")) and len(inputs[0].shape) > 1:
        rows = _nested(_fixed(inputs[0].shape), _zero(inputs[0].datatype))
        return Example(data=msgspec.json.encode(rows).decode())
    tensors = [
        {**_described(tensor), "data": [_zero(tensor.datatype)] * math.prod(_fixed(tensor.shape))} for tensor in inputs
    ]
    return Example(data=msgspec.json.encode({"inputs": tensors}).decode())


def instructions(found: Example, where: str) -> list[str]:
    """Return the lines that say how to ask the model. `where` is its name with its namespace, as for the command."""
    if found.data:
        return [f"Ask it:   skysail predict {where} -d {shlex.quote(found.data)}"]
    if found.program:
        return [
            f"Write a request of zeros: python3 -c {shlex.quote(found.program)} > request.json",
            f"Ask it:   skysail predict {where} -d @request.json",
        ]
    unknown = (
        "The server does not describe the model's inputs: write a request as JSON to request.json, such as "
        "[[1.0, 2.0]] for one row of two values."
    )
    return [unknown, f"Ask it:   skysail predict {where} -d @request.json"]


def _program(inputs: list[_Tensor]) -> str:
    """Return a program that prints the request. JSON without its constants is also Python."""
    tensors = ", ".join(
        f"{msgspec.json.encode(_described(tensor)).decode()[:-1]}, "
        f'"data": [{_zero(tensor.datatype)!r}] * {math.prod(_fixed(tensor.shape))}}}'
        for tensor in inputs
    )
    return f'import json; print(json.dumps({{"inputs": [{tensors}]}}))'


def _described(tensor: _Tensor) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": _fixed(tensor.shape)}


def _fixed(shape: list[int]) -> list[int]:
    """Return the shape with 1 for dimensions that may have any size."""
    return [size if size > 0 else 1 for size in shape]


def _zero(datatype: str) -> Any:
    return _ZEROS.get(datatype, 0.0 if datatype.startswith("FP") else 0)


def _nested(shape: list[int], value: Any) -> Any:
    return value if not shape else [_nested(shape[1:], value) for _ in range(shape[0])]
