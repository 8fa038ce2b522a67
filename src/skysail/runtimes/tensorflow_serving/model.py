"""SavedModel, called with rows (`instances`) or whole tensors (`inputs`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

_DEFAULT_SIGNATURE = "serving_default"
Answer = dict[str, Any]


class NoModel(Exception):
    """There is no model to serve; the message names the folder."""


class Misasked(Exception):
    """The request does not fit the model; the message gives the reason."""


class Model:
    """Newest version of a model. Only one thread loads it."""

    def __init__(self, folder: Path) -> None:
        numbers = [int(path.name) for path in folder.glob("*") if path.name.isdecimal() and path.is_dir()]
        if not numbers:
            raise NoModel(f"{folder} has no version folder: add one with a number as name.")
        self.version = max(numbers)
        self._loaded = tf.saved_model.load(str(folder / str(self.version)))
        if not self._loaded.signatures:
            raise NoModel(f"Model {folder}/{self.version} has no signatures: save it with one.")

    def described(self) -> Answer:
        return {name: _described(signature) for name, signature in self._loaded.signatures.items()}

    def predict(self, request: Any) -> Answer:
        if not isinstance(request, dict) or ("instances" in request) == ("inputs" in request):
            raise Misasked("JSON Value: must be an object with either 'instances' or 'inputs'")
        signature = self._signature(request.get("signature_name") or _DEFAULT_SIGNATURE)
        names = list(signature.structured_input_signature[1])
        if "inputs" in request:
            return {"outputs": _alone(self._run(signature, _columns(names, request["inputs"])))}
        found = self._run(signature, _columns(names, _turned(names, request["instances"])))
        return {"predictions": _rows(found)}

    def _signature(self, name: str) -> Any:
        signatures = self._loaded.signatures
        if name not in signatures:
            known = ", ".join(sorted(signatures))
            raise Misasked(f'Serving signature name: "{name}" not found in signature def. There are: {known}')
        return signatures[name]

    def _run(self, signature: Any, columns: dict[str, Any]) -> dict[str, list[Any]]:
        specs = signature.structured_input_signature[1]
        try:
            tensors = {name: tf.constant(value, dtype=specs[name].dtype) for name, value in columns.items()}
            found = signature(**tensors)
        except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
            raise Misasked(str(error).splitlines()[0]) from error
        return {name: np.asarray(tensor).tolist() for name, tensor in found.items()}


def _columns(names: list[str], inputs: Any) -> dict[str, Any]:
    """Return one value for each input. A model with one input may be called without its name."""
    if not isinstance(inputs, dict):
        inputs = {names[0]: inputs} if len(names) == 1 else {}
    if set(inputs) != set(names):
        raise Misasked(f"Missing named inputs: the model has {', '.join(sorted(names))}")
    return {name: inputs[name] for name in names}


def _turned(names: list[str], instances: Any) -> Any:
    if not isinstance(instances, list) or not instances:
        raise Misasked("JSON Value: 'instances' must be a list with at least one row")
    if not all(isinstance(row, dict) for row in instances):
        return instances
    if any(set(row) != set(names) for row in instances):
        raise Misasked(f"Missing named inputs in a row: the model has {', '.join(sorted(names))}")
    return {name: [row[name] for row in instances] for name in names}


def _alone(found: dict[str, list[Any]]) -> Any:
    return next(iter(found.values())) if len(found) == 1 else found


def _rows(found: dict[str, list[Any]]) -> list[Any]:
    if len(found) == 1:
        return next(iter(found.values()))
    return [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]


def _described(signature: Any) -> Answer:
    inputs = signature.structured_input_signature[1]
    return {
        "inputs": {name: _tensor(spec) for name, spec in inputs.items()},
        "outputs": {name: _tensor(spec) for name, spec in signature.structured_outputs.items()},
        "method_name": "tensorflow/serving/predict",
    }


def _tensor(spec: Any) -> Answer:
    sizes = [] if spec.shape.rank is None else [{"size": str(-1 if size is None else size)} for size in spec.shape]
    return {
        "dtype": f"DT_{spec.dtype.name.upper().replace('FLOAT32', 'FLOAT')}",
        "tensor_shape": {"dim": sizes, "unknown_rank": spec.shape.rank is None},
    }
