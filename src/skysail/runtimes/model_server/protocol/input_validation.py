"""Validation of parsed requests against the model's signature, and their batching key."""

from __future__ import annotations

from collections.abc import Hashable

import msgspec
import numpy as np

from skysail.runtimes.model_server import tensors
from skysail.runtimes.model_server.errors import RequestError
from skysail.runtimes.model_server.models import Signature
from skysail.runtimes.model_server.tensors import ANY, Array, Spec


class InferenceInput(msgspec.Struct, frozen=True):
    """Input of the model, and request fields for the response.

    Works with the same `kind` may be batched; one without a kind runs alone. `size` is in bytes.
    """

    arrays: tuple[Array, ...]
    rows: int
    kind: Hashable = None
    id: str | None = None
    outputs: tuple[str, ...] = ()
    size: int = 0


class InputValidator:
    def __init__(self, signature: Signature, rows: int) -> None:
        """Set the signature and the maximum number of rows of a request."""
        self._signature = signature
        self._rows = rows
        first = signature.inputs[0].shape
        # Fast path: nearly all models have one input, whose rows have one width.
        is_plain = signature.known and len(signature.inputs) == 1 and first[:1] == (ANY,) and ANY not in first[1:]
        self._width = first[1:] if is_plain else None

    def admit(self, arrays: tuple[Array, ...]) -> InferenceInput:
        """Validate arrays. Raises RequestError."""
        shape = arrays[0].shape
        if shape[1:] == self._width and 0 < shape[0] <= self._rows and arrays[0].size:
            return InferenceInput(arrays, shape[0], self._width, None, (), arrays[0].nbytes)
        return self._looked_at(arrays)

    def cast(self, array: Array, spec: Spec) -> Array:
        """Cast to the model's type, if both are of the same kind. Raises RequestError."""
        if not self._signature.known or array.dtype == spec.dtype:
            return array
        if not np.can_cast(array.dtype, spec.dtype, "same_kind"):
            raise RequestError(f"`{spec.name}` is {tensors.NAMES[array.dtype]}: send {spec.datatype}.")
        cast = array.astype(spec.dtype)
        if array.dtype.kind in "iu" and not np.array_equal(cast, array):
            raise RequestError(f"A value of `{spec.name}` does not fit into {spec.datatype}.")
        tensors.require_finite(cast)
        return cast

    def _looked_at(self, arrays: tuple[Array, ...]) -> InferenceInput:
        for spec, array in zip(self._signature.inputs, arrays, strict=True):
            if array.size == 0:
                raise RequestError(f"`{spec.name}` is empty: send at least one row.")
            if self._signature.known and not spec.fits(array.shape):
                raise RequestError(
                    f"`{spec.name}` has shape {list(array.shape)}, but the model takes {list(spec.shape)}."
                )
        rows = arrays[0].shape[0] if arrays[0].ndim else 1
        if rows > self._rows:
            raise RequestError(f"The request has {rows} rows: send at most {self._rows}.", 413)
        # An input may also apply to all rows of its request; then requests cannot be batched.
        all_rows = all(array.shape[:1] == (rows,) for array in arrays)
        kind = tuple((array.dtype.num, array.shape[1:]) for array in arrays) if all_rows else None
        return InferenceInput(arrays, rows, kind, size=sum(array.nbytes for array in arrays))
