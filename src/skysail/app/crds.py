"""Installation of the CRDs of this version, for `skysail crds apply`. A CRD of another project is not overwritten."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from skysail.app import manifests
from skysail.base.errors import UserError
from skysail.base.names import Label
from skysail.kube.api.objects import Object
from skysail.kube.api.rbac import PolicyRule
from skysail.kube.api.resources import CRD
from skysail.kube.cache.discovery import CrdInfo
from skysail.kube.client.client import Client, Manifest
from skysail.kube.client.errors import Conflict

_POLL_SECONDS = 0.1

NAMES = tuple(definition["metadata"]["name"] for definition in manifests.definitions())
POLICY_RULES = (
    PolicyRule(CRD, ("create",)),
    PolicyRule(CRD, ("get", "patch"), names=NAMES),
)


class ForeignCrd(UserError):
    """A CRD of the same name belongs to another project."""


async def apply(client: Client, *, take_over: bool, report: Callable[[str], None]) -> None:
    """Apply all CRDs and wait until they are served. Checks all before it changes the first.

    Raises ForeignCrd if a CRD is another project's, unless `take_over`.
    """
    definitions = manifests.definitions()
    if not take_over:
        await _refuse_foreign(client, definitions)
    for definition in definitions:
        await _apply(client, definition)
    for name in NAMES:
        await _wait_established(client, name)
        report(f"CRD {name} is current.")


def is_ours(definition: Object) -> bool:
    """Return whether Skysail installed this CRD."""
    return (definition.metadata.labels or {}).get(Label.MANAGED_BY) == manifests.NAME


async def _refuse_foreign(client: Client, definitions: list[Manifest]) -> None:
    for definition in definitions:
        name = definition["metadata"]["name"]
        present = await client.find(CRD, "", name, Object)
        if present is not None and not is_ours(present):
            raise ForeignCrd(
                f"CRD {name} exists and was not installed by Skysail: remove it, or replace it with --take-over, which "
                "keeps its objects."
            )


async def _wait_established(client: Client, name: str) -> None:
    while True:
        crd_info = await client.get(CRD, "", name, CrdInfo)
        if crd_info.is_established:
            return
        await asyncio.sleep(_POLL_SECONDS)


async def _apply(client: Client, definition: Manifest) -> None:
    while True:
        try:
            await client.apply(CRD, definition, Object)
        except Conflict:
            # The API server itself writes to a CRD while it begins to serve it: a retry succeeds.
            continue
        return
