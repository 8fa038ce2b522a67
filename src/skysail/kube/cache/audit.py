"""Cache audit: compares names and versions in a cache with a list from the API server.

An event that a watch loses is lost for good. So caches are audited from time to time, and a cache that differs is
listed again.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from skysail.kube.api.objects import Key, Object
from skysail.kube.cache.cache import Cache
from skysail.kube.cache.reflector import ListMeta
from skysail.kube.client.client import Client, decode_reply

# Report a difference only if it persists for this time: most differences are events still in transit.
_SETTLE_SECONDS = 2.0
_CHUNK = "1000"
_NAMES_ONLY = {"Accept": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"}


class AuditResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the audit of one cache."""

    kind: str
    cached: int
    live: int
    missing: int = 0
    stale: int = 0
    extra: int = 0

    @property
    def differs(self) -> bool:
        return bool(self.missing or self.stale or self.extra)


class _Page(msgspec.Struct):
    metadata: ListMeta
    items: list[Object] | None = None  # null in an empty list


Difference = tuple[str, Key, str, str]


async def audit(client: Client, cache: Cache[Any]) -> AuditResult:
    """Compare one cache with the API server. Reads only."""
    live = await _live(client, cache)
    lasting = _differences(live, cache)
    if lasting:
        await asyncio.sleep(_SETTLE_SECONDS)
        live = await _live(client, cache)
        lasting &= _differences(live, cache)
    counts = {what: sum(1 for difference in lasting if difference[0] == what) for what in ("missing", "stale", "extra")}
    return AuditResult(kind=cache.resource.crd_name, cached=len(cache), live=len(live), **counts)


def _differences(live: dict[Key, tuple[str, str]], cache: Cache[Any]) -> set[Difference]:
    cached = {o.metadata.key: (o.metadata.uid, o.metadata.resource_version) for o in cache.all()}
    found = {("missing", key, "", live[key][1]) for key in live.keys() - cached.keys() - cache.undecodable}
    found |= {("extra", key, cached[key][1], "") for key in cached.keys() - live.keys()}
    return found | {
        ("stale", key, cached[key][1], live[key][1]) for key in live.keys() & cached.keys() if live[key] != cached[key]
    }


async def _live(client: Client, cache: Cache[Any]) -> dict[Key, tuple[str, str]]:
    found: dict[Key, tuple[str, str]] = {}
    for namespace in cache.feeds:
        found.update(await _names(client, cache, namespace))
    return found


async def _names(client: Client, cache: Cache[Any], namespace: str) -> dict[Key, tuple[str, str]]:
    found: dict[Key, tuple[str, str]] = {}
    query = {"limit": _CHUNK, **cache.selector}
    while True:
        page = decode_reply(await client.list_page(cache.resource, namespace, query, _NAMES_ONLY), _Page)
        found.update((o.metadata.key, (o.metadata.uid, o.metadata.resource_version)) for o in page.items or ())
        if not page.metadata.continue_:
            return found
        query = {**query, "continue": page.metadata.continue_}
