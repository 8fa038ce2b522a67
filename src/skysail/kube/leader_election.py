"""Leader election with a Lease: one process acts, the others keep their caches warm and wait.

Time is monotonic, because wall clocks jump and differ between machines. We hold the lease until ten seconds after the
*start* of the last successful renewal. Other processes may take it fifteen seconds after they saw that renewal, which
is later.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from skysail.kube.api.objects import Key, Meta, Object
from skysail.kube.api.rbac import PolicyRule
from skysail.kube.api.resources import LEASE
from skysail.kube.client.client import Client
from skysail.kube.client.errors import AlreadyExists, Conflict, KubeError, NotFound
from skysail.kube.events import micro_time

# Seconds; client-go's defaults.
_DURATION = 15
_RENEW_DEADLINE = 10.0
_RETRY = 2.0

log = logging.getLogger(__name__)

NAME = "skysail-operator"
NAMESPACE_POLICY_RULES = (PolicyRule(LEASE, ("create",)), PolicyRule(LEASE, ("get", "update"), names=(NAME,)))


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Object, frozen=True, gc=False):
    spec: LeaseSpec = LeaseSpec()


class LeaderElector:
    """Elector for one lease. The fence checks `is_leader` before each write."""

    def __init__(
        self,
        client: Client,
        key: Key,
        identity: str,
        *,
        now: Callable[[], datetime],
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self._client = client
        self._key = key
        self._identity = identity
        self._now = now
        self._clock = clock
        self._rng = rng
        self._takes_over = False
        self._until = 0.0
        self._seen: tuple[str, float] = ("", 0.0)
        self.elected = asyncio.Event()

    @property
    def is_leader(self) -> bool:
        return self._clock() < self._until

    async def run(self, *, force: bool = False) -> None:
        """Acquire the lease, then renew it. Returns only when an acquired lease is lost.

        With `single_replica`, the caller knows that any other holder is dead: the lease is taken over at once, but only
        the first time. If another process takes it back, that assumption was wrong.
        """
        self._takes_over = force
        while True:
            started = self._clock()
            if await self._try_in_time():
                self._until = started + _RENEW_DEADLINE
                self._takes_over = False
                self.elected.set()
            elif self.elected.is_set() and not self.is_leader:
                return
            await asyncio.sleep(_RETRY * self._rng.uniform(0.9, 1.1))

    async def _try_in_time(self) -> bool:
        """Try once, within the renew deadline. A late renewal does not count: in between we were not the leader."""
        seconds_left = self._until - self._clock() if self.elected.is_set() else _RENEW_DEADLINE
        try:
            async with asyncio.timeout(max(seconds_left, 0.0)):
                return await self._try()
        except TimeoutError:
            log.warning("lease renewal timed out", extra={"lease": str(self._key)})
            return False

    async def release(self) -> None:
        """Release the lease, so that the successor does not wait until it expires."""
        if not self.is_leader:
            return
        self._until = 0.0
        try:
            lease = await self._client.get(LEASE, self._key.namespace, self._key.name, Lease)
            if lease.spec.holder_identity == self._identity:
                await self._write(lease, holder="", duration=1)
        except KubeError as error:
            log.info("lease release failed, lease will expire", extra={"why": str(error)})

    async def _try(self) -> bool:
        try:
            return await self._take()
        except (Conflict, AlreadyExists):
            return False
        except KubeError as error:
            log.warning("lease request failed, retried", extra={"lease": str(self._key), "why": str(error)})
            return False

    async def _take(self) -> bool:
        try:
            lease = await self._client.get(LEASE, self._key.namespace, self._key.name, Lease)
        except NotFound:
            return await self._create()
        holder = lease.spec.holder_identity
        is_anothers = bool(holder) and holder != self._identity
        if is_anothers and not self._takes_over and not self._ran_out(lease):
            return False
        await self._write(lease, holder=self._identity, duration=_DURATION)
        return True

    def _ran_out(self, lease: Lease) -> bool:
        """Return whether we have seen this record unrenewed for longer than its lease duration."""
        if lease.metadata.resource_version != self._seen[0]:
            self._seen = (lease.metadata.resource_version, self._clock())
        seconds = lease.spec.lease_duration_seconds or _DURATION
        return self._clock() - self._seen[1] > seconds

    async def _create(self) -> bool:
        spec = LeaseSpec(lease_transitions=0)
        missing = Lease(Meta(name=self._key.name, namespace=self._key.namespace), spec)
        await self._client.create(LEASE, self._manifest(missing, self._identity, _DURATION), Lease)
        return True

    async def _write(self, lease: Lease, *, holder: str, duration: int) -> None:
        await self._client.replace(LEASE, self._manifest(lease, holder, duration), Lease)

    def _manifest(self, lease: Lease, holder: str, duration: int) -> dict[str, Any]:
        old, now = lease.spec, micro_time(self._now())
        is_new = old.holder_identity != holder
        spec = LeaseSpec(
            holder_identity=holder,
            lease_duration_seconds=duration,
            acquire_time=now if is_new else old.acquire_time,
            renew_time=now,
            lease_transitions=(old.lease_transitions or 0) + int(is_new and bool(holder)),
        )
        metadata = {"name": lease.metadata.name, "namespace": lease.metadata.namespace}
        if lease.metadata.resource_version:
            metadata["resourceVersion"] = lease.metadata.resource_version
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": metadata,
            "spec": msgspec.to_builtins(spec),
        }
