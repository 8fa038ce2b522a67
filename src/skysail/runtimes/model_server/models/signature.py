"""Signature of a model: from `signature.json` next to it, or for PyTorch guessed from its weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from skysail.runtimes.model_formats import FoundModel
from skysail.runtimes.model_server.errors import InvalidModel
from skysail.runtimes.model_server.models import Signature
from skysail.runtimes.model_server.tensors import ANY, TYPES, Array, Spec

FILE = "signature.json"
# Rows of different magnitude: with equal ones, a model that mixes rows could go unnoticed.
_SCALES = (1.0, 0.01, 100.0)
# Image sizes of common networks, and a short sequence.
_SIDES = (224, 32, 28, 299, 64, 8, 1)


def written(found_model: FoundModel) -> Signature | None:
    """Return the signature of the file, in the form of the protocol's metadata, or None. Raises InvalidModel."""
    file = found_model.beside(FILE)
    if file is None:
        return None
    try:
        signature = msgspec.json.decode(file.read_bytes(), type=Signature)
    except msgspec.DecodeError as error:
        raise InvalidModel(f"{FILE} cannot be parsed: {error}.") from error
    errors = [spec.datatype for spec in (*signature.inputs, *signature.outputs) if spec.datatype not in TYPES]
    if errors or not signature.inputs:
        raise InvalidModel(f"{FILE} needs at least one input, and datatypes of {', '.join(TYPES)}.")
    unfit = next((spec for spec in signature.inputs if spec.trial and not _is_fit(spec)), None)
    if unfit is not None:
        raise InvalidModel(f"`trial` of {unfit.name} in {FILE} must be a shape that {list(unfit.shape)} allows.")
    return signature


def _is_fit(spec: Spec) -> bool:
    return min(spec.trial) > 0 and spec.fits(spec.trial)


def guesses(name: str, weight: tuple[int, ...] | None, *, embeds: bool) -> Iterator[Spec]:
    """Yield inputs that a model with this first weight may take."""
    if weight is None:
        return
    if embeds:
        yield Spec(name=name, datatype="INT64", shape=(ANY, 8))
        return
    match weight:
        case (_, width):
            yield Spec(name=name, datatype="FP32", shape=(ANY, width))
        case (_, channels, _, _):
            for side in _SIDES:
                yield Spec(name=name, datatype="FP32", shape=(ANY, channels, side, side))
        case (_, channels, _):
            yield Spec(name=name, datatype="FP32", shape=(ANY, channels, 64))
        case (width,):
            yield Spec(name=name, datatype="FP32", shape=(ANY, width))
        case _:
            return


def examples(specs: Sequence[Spec], rows: int, side: int = 1) -> list[Array]:
    """Return input that fits: values differ from row to row, also in magnitude, and are the same every time."""
    return [_example(spec, rows, side) for spec in specs]


def sides(specs: Sequence[Spec]) -> tuple[int, ...]:
    """Return the sizes to try for open dimensions other than the first."""
    return _SIDES[::-1] if any(ANY in spec.shape[1:] and not spec.trial for spec in specs) else (1,)


def _example(spec: Spec, rows: int, side: int) -> Array:
    first = [rows if size == ANY else size for size in spec.shape[:1]]
    shape = (*first, *(spec.trial[1:] or (side if size == ANY else size for size in spec.shape[1:])))
    count = math.prod(shape)
    row, place = np.divmod(np.arange(count), count // rows if spec.shape[:1] == (ANY,) else count)
    if spec.dtype.kind == "f":
        numbers: Array = np.sin(np.arange(1, count + 1)) * np.take(_SCALES, row, mode="wrap")
    else:
        # Zeros and ones are valid indexes of any embedding.
        numbers = (place // (1 + row // 2) + row) % 2
    return numbers.astype(spec.dtype).reshape(shape)
