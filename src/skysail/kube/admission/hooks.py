"""What a kind says about objects on their way into the cluster: pure functions, and when to ask them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

Manifest = dict[str, Any]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one review. A refusal carries the sentence that the user sees; a patch is JSON Patch."""

    refused: str | None = None
    warnings: tuple[str, ...] = ()
    patch: tuple[Manifest, ...] = ()


Admit = Callable[[Manifest, Manifest | None], Verdict]


class Hook(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a MutatingWebhookConfiguration and the pure function behind it: (object, old object) -> verdict."""

    name: str
    admit: Admit
    rules: tuple[Manifest, ...]
    match_conditions: tuple[tuple[str, str], ...] = ()

    @property
    def path(self) -> str:
        return f"/admit/{self.name}"
