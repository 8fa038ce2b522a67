"""Ports of the bridge: which one is free, and which ones were released a moment ago.

A port belongs to one port of one claim. It is written into the claim's status, which tenants cannot write. A released
port rests for ten minutes, so that no stale EndpointSlice and no open connection leads to the next claim. A namespace
gets no more ports than are free, so that others find some. Ports that rest count for the namespace that had them.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import NamedTuple

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


class _Release(NamedTuple):
    """Release of a port. The namespace is empty if an earlier version of Skysail has recorded it."""

    namespace: str
    at: datetime


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
        self._released: dict[int, _Release] = {}
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
                released = _decode(page.data.get("released", "{}"))
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
        resting = self._resting()
        taken = self._holders.keys() | self._proposed.values() | resting.keys()
        count = LAST_PORT - FIRST_PORT + 1
        if count - len(taken) <= self._namespace_total(self._namespace_of(claim), resting):
            return None
        port = self._rng.randint(FIRST_PORT, LAST_PORT)
        while port in taken:
            port = FIRST_PORT + (port - FIRST_PORT + 1) % count
        self._proposed[claim, target] = port
        return port

    def _namespace_of(self, claim: str) -> str:
        found = self._claims.get(Key("", claim))
        return found.spec.owner.namespace if found is not None else ""

    def _resting(self) -> dict[int, str]:
        """Return the ports that rest, with the namespaces that had them."""
        since = self._now() - REST
        return {port: release.namespace for port, release in self._released.items() if release.at > since}

    def _namespace_total(self, namespace: str, resting: dict[int, str]) -> int:
        """Return how many ports the claims of a namespace have, will have soon, or have released a moment ago.

        Returns 0 for an unknown namespace.
        """
        if not namespace:
            return 0
        proposed = sum(self._namespace_of(claim) == namespace for claim, _ in self._proposed)
        released = sum(owner == namespace and port not in self._holders for port, owner in resting.items())
        return self._held[namespace] + proposed + released

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
        resting = self._resting()
        self._released = {port: release for port, release in self._released.items() if port in resting}
        data = {"released": _encode(self._released)}
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
        namespace = claim.spec.owner.namespace
        before, after = _ports(old), _ports(new)
        self._held[namespace] += len(after) - len(before)
        for port in after - before:
            self._holders.setdefault(port, set()).add(name)
        for port in before - after:
            self._release(port, claim)
        if new is not None and new.metadata.is_deleting and not (old and old.metadata.is_deleting):
            # Written before the claim is gone: a process that crashes at its end loses nothing.
            self._released |= dict.fromkeys(after, _Release(namespace, self._now()))
            self._news.set()
        served = {target_of(entry) for entry in new.status.bridge_ports} if new else None
        for key in [key for key in self._proposed if key[0] == name and (served is None or key[1] in served)]:
            del self._proposed[key]

    def _release(self, port: int, claim: CloudInstance) -> None:
        holders = self._holders.get(port, set())
        holders.discard(claim.metadata.name)
        if not holders:
            self._holders.pop(port, None)
            self._released[port] = _Release(claim.spec.owner.namespace, self._now())
            self._news.set()


def _encode(released: dict[int, _Release]) -> str:
    """Encode the times of releases by namespace: the name of a namespace for each port would exceed a ConfigMap."""
    times: defaultdict[str, dict[int, datetime]] = defaultdict(dict)
    for port, release in released.items():
        times[release.namespace][port] = release.at
    return msgspec.json.encode(times).decode()


def _decode(data: str) -> dict[int, _Release]:
    """Decode the releases, also those of earlier versions: times by port. Raises `MsgspecError`."""
    released: dict[int, _Release] = {}
    for name, times in msgspec.json.decode(data, type=dict[str, dict[int, datetime] | datetime]).items():
        by_port, namespace = ({int(name): times}, "") if isinstance(times, datetime) else (times, name)
        released |= {port: _Release(namespace, at) for port, at in by_port.items()}
    return released


def _ports(claim: CloudInstance | None) -> set[int]:
    return {entry.port for entry in claim.status.bridge_ports} if claim else set()


def _age(claim: CloudInstance) -> tuple[str, str]:
    return claim.metadata.creation_timestamp or "", claim.metadata.name
