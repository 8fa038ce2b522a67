"""Loaded models: signature, loading, warm-up, the PyTorch and ONNX back ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from skysail.runtimes.model_server.tensors import Array, Spec


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs and outputs of a model. If it is not `known`, it is a guess that other shapes may disprove."""

    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...] = ()
    known: bool = True

    def output_names(self, count: int) -> tuple[str, ...]:
        if len(self.outputs) == count:
            return tuple(spec.name for spec in self.outputs)
        return tuple(f"output{number}" for number in range(count))


class ModelTraits(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of a model that are known without running it.

    The result for a row of a `mixes_rows` model depends on other rows. The time of a `has_branches` model depends on
    the values.
    """

    mixes_rows: bool = False
    has_branches: bool = False


class Model(Protocol):
    """Loaded model. Only one thread uses it at a time."""

    @property
    def platform(self) -> str:
        """Return the protocol's name of the framework."""

    @property
    def signature(self) -> Signature: ...

    @property
    def traits(self) -> ModelTraits: ...

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Run the model. May raise anything."""
