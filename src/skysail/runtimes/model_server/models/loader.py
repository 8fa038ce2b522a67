"""Loading of a model, with test runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from skysail.runtimes import model_formats
from skysail.runtimes.model_formats import Format, FoundModel, NoModel
from skysail.runtimes.model_server.errors import InvalidModel, InvalidSetting, ModelError
from skysail.runtimes.model_server.models import Model, cpu_count, signature, user_code
from skysail.runtimes.model_server.settings import Settings
from skysail.runtimes.model_server.tensors import ANY, Array

_Result = TypeVar("_Result")
# Another order of additions changes the last digits; a model that mixes rows changes the first.
_RELATIVE, _ABSOLUTE = 1e-3, 1e-5
# PyTorch compiles a function after two runs.
_RUNS = 3
_FIX = (
    f"Put {signature.FILE} next to it with shapes that work, or set ALLOW_UNTRIED=1 if only the values of the tests "
    "are wrong"
)
_REMARK = "The model failed with every tried input, but ALLOW_UNTRIED=1 is set."


class LoadedModel(msgspec.Struct, frozen=True, kw_only=True):
    """Loaded model, an input that works (None if unknown), and whether requests may be batched."""

    model: Model
    example: tuple[Array, ...] | None
    joins: bool
    remark: str = ""


def load(settings: Settings) -> LoadedModel:
    """Load the model and run it a few times. Slow. Raises CannotServe."""
    path = Path(settings.model_path)
    if not path.exists():
        raise InvalidSetting(f"{path} does not exist: set MODEL_PATH to a model file, or a folder with one model.")
    found_model = _or_wrong(f"{path} cannot be read", _find, path)
    what = f"{found_model.file.name}, which looks like {found_model.format}, cannot be loaded"
    return _or_wrong(what, lambda: _tried(_read(found_model, settings), settings))


def _find(path: Path) -> FoundModel:
    try:
        return model_formats.find(path)
    except NoModel as error:
        raise InvalidModel(str(error)) from error


def _or_wrong(what: str, function: Callable[..., _Result], *arguments: object) -> _Result:
    try:
        return user_code.call_user_code(function, *arguments)
    except ModelError as error:
        raise InvalidModel(f"{what}: {error}.") from error


def _read(found_model: FoundModel, settings: Settings) -> Model:
    threads = settings.threads or cpu_count.usable_cpus()
    if found_model.format is Format.ONNX:
        from skysail.runtimes.model_server.models.onnx import OnnxModel  # noqa: PLC0415 - imported only for ONNX models

        return OnnxModel(found_model, threads)
    from skysail.runtimes.model_server.models import torch  # noqa: PLC0415 - takes seconds and hundreds of megabytes

    return torch.load(found_model, settings, threads)


def _tried(model: Model, settings: Settings) -> LoadedModel:
    try:
        side = _side(model)
    except ModelError as error:
        if settings.allow_untried:
            return LoadedModel(model=model, example=None, joins=False, remark=_REMARK)
        raise ModelError(f"{error}. {_FIX}") from error
    inputs = model.signature.inputs
    may_join = settings.batching and not model.traits.mixes_rows and all(spec.shape[:1] == (ANY,) for spec in inputs)
    joins = may_join and _rows_are_independent(model, side)
    return LoadedModel(model=model, example=tuple(signature.examples(inputs, 1, side)), joins=joins)


def _side(model: Model) -> int:
    """Return a size for the open dimensions with which the model works.

    Raises ModelError. The model is warm afterwards.
    """
    known = model.signature
    if not known.known and not all(spec.shape for spec in known.inputs):
        raise ModelError("it has no signature, and every guess from its weights failed")
    failures: list[ModelError] = []
    for side in signature.sides(known.inputs):
        try:
            for _ in range(_RUNS):
                user_code.call_user_code(model.run, signature.examples(known.inputs, 1, side))
        except ModelError as error:
            failures.append(error)
        else:
            return side
    raise ModelError(f"it fails with input of its own signature: {failures[-1]}")


def _rows_are_independent(model: Model, side: int) -> bool:
    """Return whether rows get the same result in a batch as alone. A trace may be fixed to one row."""
    three = signature.examples(model.signature.inputs, 3, side)
    try:
        whole = user_code.call_user_code(model.run, three)
        parts = [user_code.call_user_code(model.run, [array[row : row + 1] for array in three]) for row in range(3)]
    except ModelError:
        return False
    return all(
        _same(together, alone, len(three[0])) for together, alone in zip(whole, zip(*parts, strict=True), strict=True)
    )


def _same(together: Array, alone: tuple[Array, ...], rows: int) -> bool:
    if together.ndim == 0 or any(part.shape[1:] != together.shape[1:] or part.ndim == 0 for part in alone):
        return False
    joined = np.concatenate(alone)
    return len(together) == len(joined) == rows and all(map(_near, together, joined))


def _near(one: Array, other: Array) -> bool:
    """Compare relative to the largest number of the row: differences of large numbers are only as exact as these."""
    largest = np.abs(other, where=np.isfinite(other), out=np.zeros(other.shape)).max(initial=1.0)
    return np.allclose(one, other, equal_nan=True, rtol=_RELATIVE, atol=_ABSOLUTE * largest)
