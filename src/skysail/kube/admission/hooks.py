"""Admission hooks of a kind: pure functions, and the rules when the API server calls them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

Manifest = dict[str, Any]


class AdmissionResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Response to one admission review. `denied` is the message that the user sees; `patch` is a JSON Patch."""

    denied: str | None = None
    warnings: tuple[str, ...] = ()
    patch: tuple[Manifest, ...] = ()


AdmitFunc = Callable[[Manifest, Manifest | None], AdmissionResponse]
ObserveFunc = Callable[[Manifest], Awaitable[AdmitFunc]]


class Hook(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a MutatingWebhookConfiguration and its pure function: (object, old object) -> response.

    `observe` reads facts about the object first and returns the pure function with these facts, in place of `admit`.
    It never writes, because the API server may call a webhook for a dry run.
    """

    name: str
    admit: AdmitFunc
    rules: tuple[Manifest, ...]
    match_conditions: tuple[tuple[str, str], ...] = ()
    observe: ObserveFunc | None = None

    @property
    def path(self) -> str:
        return f"/admit/{self.name}"


def admission_rule(group: str, plural: str, *operations: str) -> Manifest:
    """Return the rule of a hook for these operations on a namespaced resource, in all versions."""
    return {
        "apiGroups": [group],
        "apiVersions": ["*"],
        "operations": list(operations),
        "resources": [plural],
        "scope": "Namespaced",
    }
