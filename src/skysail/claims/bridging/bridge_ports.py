"""Ports of the bridge: which one is free, and which ones were released a moment ago.

A port belongs to one port of one claim. It is written into the claim's status, which tenants cannot write. A released
port rests for ten minutes, so that no stale EndpointSlice and no open connection leads to the next claim. A namespace
gets no more ports than are free, so that others find some.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta

import msgspec

from skysail.claims.bridging.targets import Target, target_of
from skysail.claims.types import CloudInstance
from skysail.kube.api.objects import Key, Object
from skysail.kube.api.rbac import PolicyRule
from skysail.kube.api.resources import CONFIG_MAP
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import Client
from skysail.kube.client.errors import KubeError, NotFound

NAME = "skysail-bridge-ports"
NAMESPACE_POLICY_RULES = (
    PolicyRule(CONFIG_MAP, ("create",)),
    PolicyRule(CONFIG_MAP, ("get", "patch"), names=(NAME,)),
)
FIRST_PORT, LAST_PORT = 20000, 29999
REST = timedelta(minutes=10)
_RETRY_SECONDS = 2.0

log = logging.getLogger(__name__)


class _Page(Object, frozen=True, gc=False):
    data: dict[str, str] = msgspec.field(default_factory=dict)


class BridgePorts:
    """Allocation of bridge ports in the leader. The claims in the cache are the truth about ports in use.

    Released ports are kept in a ConfigMap of the operator's namespace, so that a restart does not reuse them too soon.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        claims: Cache[CloudInstance],
        *,
        now: Callable[[], datetime],
        rng: random.Random,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._claims = claims
        self._now = now
        self._rng = rng
        self._holders: dict[int, set[str]] = {}
        self._held: Counter[str] = Counter()
        self._proposed: dict[tuple[str, Target], int] = {}
        self._released: dict[int, datetime] = {}
        self._loading = asyncio.Lock()
        self._is_loaded = False
        self._news = asyncio.Event()
        claims.subscribe(self._claim_changed)

    async def load(self) -> None:
        """Read the ports that earlier processes released. Raises KubeError if that is impossible; then call again."""
        async with self._loading:
            if self._is_loaded:
                return
            try:
                page = await self._client.get(CONFIG_MAP, self._namespace, NAME, _Page)
                released = msgspec.json.decode(page.data.get("released", "{}"), type=dict[int, datetime])
            except NotFound:
                released = {}
            except msgspec.MsgspecError as error:
                log.warning("released bridge ports unreadable, starting empty", extra={"why": str(error)})
                released = {}
            self._released = {**released, **self._released}
            self._is_loaded = True

    def propose(self, claim: str, target: Target) -> int | None:
        """Return a free port for a port of a claim, the same one until the claim has it. Call only after `load`.

        Returns None if no port is left for the namespace of the claim, or if a claim cannot be decoded, because its
        ports are unknown.
        """
        if self._claims.undecodable:
            return None
        known = self._proposed.get((claim, target))
        if known is not None and known not in self._holders:
            return known
        now = self._now()
        resting = {port for port, at in self._released.items() if at + REST > now}
        taken = self._holders.keys() | self._proposed.values() | resting
        count = LAST_PORT - FIRST_PORT + 1
        if count - len(taken) <= self._namespace_total(self._namespace_of(claim)):
            return None
        port = self._rng.randint(FIRST_PORT, LAST_PORT)
        while port in taken:
            port = FIRST_PORT + (port - FIRST_PORT + 1) % count
        self._proposed[claim, target] = port
        return port

    def _namespace_of(self, claim: str) -> str:
        found = self._claims.get(Key("", claim))
        return found.spec.owner.namespace if found is not None else ""

    def _namespace_total(self, namespace: str) -> int:
        """Return how many ports the claims of a namespace have, or will have soon. Returns 0 for an unknown one."""
        if not namespace:
            return 0
        proposed = sum(self._namespace_of(claim) == namespace for claim, _ in self._proposed)
        return self._held[namespace] + proposed

    def is_shared(self, claim: CloudInstance, port: int) -> bool:
        """Return whether an older claim has the same port, because two leaders were active for a moment."""
        others = self._holders.get(port, set()) - {claim.metadata.name}
        known = [self._claims.get(Key("", name)) for name in others]
        return any(other is not None and _age(other) < _age(claim) for other in known)

    async def run(self) -> None:
        """Write the released ports after changes, until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self.load()
                await self._write()
            except KubeError as error:
                log.info("released bridge ports not written, retried", extra={"why": str(error)})
                self._news.set()
                await asyncio.sleep(_RETRY_SECONDS)

    async def _write(self) -> None:
        since = self._now() - REST
        self._released = {port: at for port, at in self._released.items() if at > since}
        data = {"released": msgspec.json.encode(self._released).decode()}
        try:
            await self._client.merge_patch(CONFIG_MAP, self._namespace, NAME, {"data": data}, _Page)
        except NotFound:
            metadata = {"name": NAME, "namespace": self._namespace}
            manifest = {"apiVersion": CONFIG_MAP.api_version, "kind": CONFIG_MAP.kind, "metadata": metadata}
            await self._client.create(CONFIG_MAP, {**manifest, "data": data}, _Page)

    def _claim_changed(self, old: CloudInstance | None, new: CloudInstance | None) -> None:
        claim = new or old
        assert claim is not None, "old or new is set"
        name = claim.metadata.name
        before, after = _ports(old), _ports(new)
        self._held[claim.spec.owner.namespace] += len(after) - len(before)
        for port in after - before:
            self._holders.setdefault(port, set()).add(name)
        for port in before - after:
            self._release(port, name)
        if new is not None and new.metadata.is_deleting and not (old and old.metadata.is_deleting):
            # Written before the claim is gone: a process that crashes at its end loses nothing.
            self._released |= dict.fromkeys(after, self._now())
            self._news.set()
        served = {target_of(entry) for entry in new.status.bridge_ports} if new else None
        for key in [key for key in self._proposed if key[0] == name and (served is None or key[1] in served)]:
            del self._proposed[key]

    def _release(self, port: int, claim: str) -> None:
        holders = self._holders.get(port, set())
        holders.discard(claim)
        if not holders:
            self._holders.pop(port, None)
            self._released[port] = self._now()
            self._news.set()


def _ports(claim: CloudInstance | None) -> set[int]:
    return {entry.port for entry in claim.status.bridge_ports} if claim else set()


def _age(claim: CloudInstance) -> tuple[str, str]:
    return claim.metadata.creation_timestamp or "", claim.metadata.name
