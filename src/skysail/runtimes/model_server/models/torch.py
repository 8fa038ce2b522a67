"""PyTorch models: TorchScript, weights with their code, and exported programs.

Unpickling runs arbitrary code, so weights are always loaded with `weights_only`.
"""

from __future__ import annotations

import importlib.util
import pickle
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from skysail.runtimes.model_formats import CODE, Format, FoundModel
from skysail.runtimes.model_server.errors import InvalidModel, InvalidSetting, ModelError
from skysail.runtimes.model_server.models import ModelTraits, Signature, signature, user_code
from skysail.runtimes.model_server.settings import Settings
from skysail.runtimes.model_server.tensors import Array, Spec

try:
    import torch
except ImportError as error:
    raise InvalidSetting(
        "This image has no PyTorch: use fastapi-pytorch instead of fastapi-onnx, or export the model to ONNX."
    ) from error

_MAKE = "make"
# Operators of scripts and exported programs, and modules, whose quantization depends on the whole batch.
_BY_BATCH = re.compile(r"::(\w*_dynamic|quantized_(lstm|gru))\b|choose_qparams\.tensor")
_BY_BATCH_MODULES = ".quantized.dynamic."
_BRANCHES = ("prim::Loop", "prim::If")
_INSIDE = ("state_dict", "model_state_dict", "model")


class TorchModel:
    """PyTorch model, called with one tensor per input. Its signature may be replaced once it is known."""

    platform = "pytorch"

    def __init__(self, function: Callable[..., Any], known: Signature | None, name: str, device: str) -> None:
        self._function = function
        self._device = device
        self.traits = _traits(function)
        self.signature = known or Signature(inputs=(Spec(name=name, datatype="FP32", shape=()),), known=False)

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        with torch.inference_mode():
            given = [torch.from_numpy(array) for array in arrays]
            if self._device != "cpu":
                given = [tensor.to(self._device) for tensor in given]
            return [tensor.cpu().numpy() for tensor in _tensors(self._function(*given))]


def load(found_model: FoundModel, settings: Settings, threads: int) -> TorchModel:
    """Load a PyTorch model. Raises InvalidModel or WrongSetting."""
    torch.set_num_threads(threads)
    device = _device(settings)
    readers = {
        Format.SCRIPT: _script,
        Format.WEIGHTS: _with_code,
        Format.SAFETENSORS: _with_code,
        Format.EXPORTED: _exported,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings for model authors would hide our own message
        function = readers[found_model.format](found_model, settings, device)
    known = signature.written(found_model)
    model = TorchModel(function, known, _argument(function), device)
    if known is None:
        model.signature = _guessed(model, function) or model.signature
    return model


def _script(found_model: FoundModel, _: Settings, device: str) -> Callable[..., Any]:
    module = torch.jit.load(str(found_model.file), device)
    module.eval()
    return module  # type: ignore[no-any-return]


def _with_code(found_model: FoundModel, settings: Settings, device: str) -> Callable[..., Any]:
    weights = _weights(found_model)
    if found_model.missing_file:
        raise InvalidModel(found_model.missing_file)
    if not settings.allow_code:
        raise InvalidSetting(f"{CODE} comes with the model: set ALLOW_CODE=1 to run its code.")
    module = _made(found_model.file.with_name(CODE))
    module.load_state_dict(weights)
    return module.eval().to(device)  # type: ignore[no-any-return]


def _weights(found_model: FoundModel) -> Mapping[str, Any]:
    if found_model.format is Format.SAFETENSORS:
        from safetensors.torch import load_file  # noqa: PLC0415 - imported only if needed

        tensors: Mapping[str, Any] = load_file(str(found_model.file))
        return tensors
    try:
        content = torch.load(found_model.file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InvalidModel(
            f"{found_model.file.name} is a pickle of more than weights, such as a whole module, and loading it "
            "would run its "
            "code. Save the model with torch.jit.save or torch.onnx.export, or save only its state_dict()."
        ) from error
    weights = _state(content)
    if weights is None:
        raise InvalidModel(
            f"{found_model.file.name} is a {type(content).__name__} without a state_dict: save the state_dict()."
        )
    return weights


def _state(content: object) -> Mapping[str, Any] | None:
    """Return the weights, also from inside a checkpoint, or None."""
    if not isinstance(content, Mapping):
        return None
    if content and all(isinstance(value, torch.Tensor) for value in content.values()):
        return content
    return next((state for key in _INSIDE if (state := _state(content.get(key))) is not None), None)


def _made(code: Path) -> Any:
    spec = importlib.util.spec_from_file_location("served_model", code)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    make = getattr(module, _MAKE, None)
    if make is None:
        raise InvalidModel(f"{CODE} has no function {_MAKE}(): add one that returns the module.")
    return make()


def _exported(found_model: FoundModel, settings: Settings, device: str) -> Callable[..., Any]:
    if not settings.allow_code:
        raise InvalidSetting(
            f"{found_model.file.name} is an exported program, and loading it can run code in it. Set ALLOW_CODE=1 "
            "to allow "
            "that, or export the model to ONNX."
        )
    module = torch.export.load(str(found_model.file)).module()
    return module.to(device)  # type: ignore[no-any-return]


def _guessed(model: TorchModel, function: Any) -> Signature | None:
    """Return the first guess with which the model runs, or None."""
    name = model.signature.inputs[0].name
    weight, embeds = _first_weight(function)
    for spec in signature.guesses(name, weight, embeds=embeds):
        try:
            user_code.call_user_code(model.run, signature.examples([spec], rows=1))
        except ModelError:
            continue
        return Signature(inputs=(spec,), known=False)
    return None


def _first_weight(function: Any) -> tuple[tuple[int, ...] | None, bool]:
    named = next(iter(function.named_parameters()), None)
    if named is None:
        return None, False
    path, parameter = named
    owner = function
    for part in path.split(".")[:-1]:
        owner = getattr(owner, part)
    kind = getattr(owner, "original_name", type(owner).__name__)
    return tuple(parameter.shape), kind.startswith("Embedding")


def _traits(function: Any) -> ModelTraits:
    """Return the traits. Little is known about a plain Python module."""
    text = str(getattr(function, "inlined_graph", getattr(function, "graph", "")))
    modules = function.modules() if isinstance(function, torch.nn.Module) else ()
    return ModelTraits(
        mixes_rows=bool(_BY_BATCH.search(text)) or any(_BY_BATCH_MODULES in type(each).__module__ for each in modules),
        has_branches=any(name in text for name in _BRANCHES),
    )


def _argument(function: Any) -> str:
    """Return the name of the first input in the model's code."""
    schema = getattr(getattr(function, "forward", None), "schema", None)
    names = [argument.name for argument in schema.arguments[1:]] if schema is not None else []
    return str(names[0]) if names else "input0"


def _tensors(output: Any) -> list[Any]:
    if isinstance(output, torch.Tensor):
        return [output]
    values = output.values() if isinstance(output, Mapping) else output
    return [tensor for value in values for tensor in _tensors(value)]


def _device(settings: Settings) -> str:
    there = settings.device != "cpu" and torch.cuda.is_available()
    if settings.device == "cuda" and not there:
        raise InvalidSetting("DEVICE=cuda is invalid: PyTorch finds no GPU.")
    return "cuda" if there else "cpu"
