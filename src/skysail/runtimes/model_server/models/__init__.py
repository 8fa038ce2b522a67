"""Loaded models: signature, loading, warm-up, the PyTorch and ONNX back ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from skysail.runtimes.model_server.tensors import Array, Spec


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """What a model takes and gives. Where it is not `known`, it is a guess that other shapes may prove wrong."""

    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...] = ()
    known: bool = True

    def output_names(self, count: int) -> tuple[str, ...]:
        if len(self.outputs) == count:
            return tuple(spec.name for spec in self.outputs)
        return tuple(f"output{number}" for number in range(count))


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """What can be known of a model without running it.

    A `mixing` one computes a row differently beside others. The time of a `branching` one depends on the values.
    """

    mixing: bool = False
    branching: bool = False


class Model(Protocol):
    """A loaded model. Only one thread uses it at a time."""

    @property
    def platform(self) -> str:
        """The protocol's word for what runs it."""

    @property
    def signature(self) -> Signature: ...

    @property
    def traits(self) -> Traits: ...

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """May raise anything."""
