"""Tensors of the Open Inference Protocol as numpy arrays."""

from __future__ import annotations

from itertools import chain
from math import isfinite, prod
from typing import Any, TypeAlias

import msgspec
import numpy as np

from skysail.runtimes.model_server.errors import RequestError

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

# BYTES is not supported: models of numbers do not need it.
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
    """Input or output of a model.

    A dimension of -1 may have any size. `trial` is a shape that the model works with, if the user named one.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    trial: tuple[int, ...] = ()

    @property
    def dtype(self) -> np.dtype[Any]:
        return TYPES[self.datatype]

    def fits(self, shape: tuple[int, ...]) -> bool:
        desired = self.shape
        if shape[1:] == desired[1:]:
            return desired[:1] in ((ANY,), shape[:1])
        return len(shape) == len(desired) and all(
            want in (ANY, have) for want, have in zip(desired, shape, strict=True)
        )


def quietly() -> None:
    """Disable numpy's overflow warnings in this task and all tasks created from it.

    `require_finite` checks afterwards. A context manager per request would take longer than parsing the request.
    """
    np.seterr(over="ignore", invalid="ignore")


def element(dtype: np.dtype[Any]) -> type:
    """Return the Python type of one JSON value."""
    return {"f": float, "b": bool}.get(dtype.kind, int)


def nested(kind: type, rank: int) -> Any:
    """Return the type of nested lists of depth `rank`."""
    whole: Any = kind
    for _ in range(rank):
        whole = list[whole]
    return whole


def of_lists(values: Any, rank: int, dtype: np.dtype[Any]) -> Array:
    """Convert nested lists of depth `rank` into an array.

    Several times faster than numpy, which has to find the depth.
    """
    shape = [len(values)]
    for _ in range(rank - 1):
        values = values if isinstance(values, list) else list(values)
        widths = set(map(len, values))
        if len(widths) > 1:
            raise RequestError(
                f"The rows have different lengths ({min(widths)} and {max(widths)}): send rows of equal length."
            )
        shape.append(widths.pop() if widths else 0)
        values = chain.from_iterable(values)
    return of_values(values, tuple(shape), dtype)


def of_values(values: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Convert flat values into an array."""
    try:
        array = np.fromiter(values, dtype, prod(shape)).reshape(shape)
    except OverflowError as error:
        raise RequestError(f"A value is outside the range of {NAMES[dtype]}.") from error
    require_finite(array)
    return array


def require_finite(array: Array) -> None:
    """Reject values that are finite in JSON but too large for their datatype."""
    if array.dtype.kind != "f":
        return
    flat = array.ravel()
    # The sum of squares is fast and finite only if all values are; if it is not, it may have overflowed itself.
    if not isfinite(flat.dot(flat)) and not np.isfinite(flat).all():
        raise RequestError(f"A value is too large for {NAMES[array.dtype]}, or is not a number.")
