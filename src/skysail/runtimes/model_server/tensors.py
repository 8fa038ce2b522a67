"""Tensors as the Open Inference Protocol names them, and as numpy has them."""

from __future__ import annotations

from itertools import chain
from math import isfinite, prod
from typing import Any, TypeAlias

import msgspec
import numpy as np

from skysail.runtimes.model_server.errors import Refused

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

# BYTES is the one that is missing: a model of numbers has no use for it.
TYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
}
NAMES = {dtype: name for name, dtype in TYPES.items()}
ANY = -1


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """An input or output, as the model's metadata tell it. A dimension of -1 may have any size.

    `trial` is a shape that the model works with, where somebody has said one.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    trial: tuple[int, ...] = ()

    @property
    def dtype(self) -> np.dtype[Any]:
        return TYPES[self.datatype]

    def fits(self, shape: tuple[int, ...]) -> bool:
        wanted = self.shape
        if shape[1:] == wanted[1:]:
            return wanted[:1] in ((ANY,), shape[:1])
        return len(shape) == len(wanted) and all(want in (ANY, have) for want, have in zip(wanted, shape, strict=True))


def quietly() -> None:
    """From here on, and in all tasks that are made from here, a number that becomes infinite is no warning.

    It is looked for afterwards. Said for each request, this would take longer than reading the request does.
    """
    np.seterr(over="ignore", invalid="ignore")


def element(dtype: np.dtype[Any]) -> type:
    """What JSON has for one value of it."""
    return {"f": float, "b": bool}.get(dtype.kind, int)


def nested(kind: type, rank: int) -> Any:
    """The type of lists in lists, `rank` deep."""
    whole: Any = kind
    for _ in range(rank):
        whole = list[whole]
    return whole


def of_lists(values: Any, rank: int, dtype: np.dtype[Any]) -> Array:
    """An array of lists in lists that are `rank` deep. Several times as fast as numpy, which finds the depth itself."""
    shape = [len(values)]
    for _ in range(rank - 1):
        values = values if isinstance(values, list) else list(values)
        widths = set(map(len, values))
        if len(widths) > 1:
            raise Refused(
                f"The rows have different lengths ({min(widths)} and {max(widths)}); all must be equally long."
            )
        shape.append(widths.pop() if widths else 0)
        values = chain.from_iterable(values)
    return of_values(values, tuple(shape), dtype)


def of_values(values: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array of values one after another."""
    try:
        array = np.fromiter(values, dtype, prod(shape)).reshape(shape)
    except OverflowError as error:
        raise Refused(f"A value is outside the range of {NAMES[dtype]}.") from error
    require_finite(array)
    return array


def require_finite(array: Array) -> None:
    """A number may be finite in JSON, and too large for its datatype."""
    if array.dtype.kind != "f":
        return
    flat = array.ravel()
    # A sum of squares is quick, and finite only if all are; if it is not, it may have been too large itself.
    if not isfinite(flat.dot(flat)) and not np.isfinite(flat).all():
        raise Refused(f"A value is too large for {NAMES[array.dtype]}, or is not a number.")
