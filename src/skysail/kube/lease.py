"""Leader election by a Lease: one process acts, the others keep their caches warm and wait.

Time is measured by the event loop's monotonic clock only: a wall clock may jump, and two machines never agree. A lease
is ours until `renew_deadline` after the *start* of the last renewal that succeeded, which is before anybody else may
take it (`duration` after they saw it).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from skysail.kube.client import Client
from skysail.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from skysail.kube.events import micro_time
from skysail.kube.objects import Key, Meta, Object
from skysail.kube.rbac import Right
from skysail.kube.resources import LEASE

log = logging.getLogger(__name__)

OWN_NAMESPACE_RIGHTS = (Right(LEASE, ("create",)), Right(LEASE, ("get", "update"), names=("skysail-operator",)))


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Object, frozen=True, gc=False):
    spec: LeaseSpec = LeaseSpec()


class Timing(msgspec.Struct, frozen=True):
    """Seconds. client-go's defaults."""

    duration: float = 15.0
    renew_deadline: float = 10.0
    retry: float = 2.0


DEFAULT_TIMING = Timing()


class Elector:
    """Campaigns for one lease. `leads` may be asked at any time; it is the fence's clock."""

    def __init__(
        self,
        client: Client,
        key: Key,
        identity: str,
        *,
        now: Callable[[], datetime],
        rng: random.Random,
        timing: Timing = DEFAULT_TIMING,
    ) -> None:
        self._client = client
        self._key = key
        self._identity = identity
        self._now = now
        self._rng = rng
        self._timing = timing
        self._until = 0.0
        self._seen: tuple[str, float] = ("", 0.0)
        self.elected = asyncio.Event()

    @property
    def leads(self) -> bool:
        return self._time() < self._until

    async def campaign(self) -> None:
        """Acquire, then renew. Returns when the lease was ours and is lost; until then it does not return."""
        while True:
            started = self._time()
            held = await self._try()
            if held:
                self._until = started + self._timing.renew_deadline
                self.elected.set()
            elif self.elected.is_set() and not self.leads:
                return
            await asyncio.sleep(self._timing.retry * self._rng.uniform(0.9, 1.1))

    async def release(self) -> None:
        """Give the lease up at once, so that a successor need not wait for it to run out."""
        if not self.leads:
            return
        self._until = 0.0
        try:
            lease = await self._client.get(LEASE, self._key.namespace, self._key.name, Lease)
            if lease.spec.holder_identity == self._identity:
                await self._write(lease, holder="", duration=1)
        except KubeError as error:
            log.info("lease not released, it will run out", extra={"why": str(error)})

    async def _try(self) -> bool:
        try:
            return await self._take()
        except (Conflict, AlreadyExists):
            return False
        except KubeError as error:
            log.warning("lease not reached", extra={"lease": str(self._key), "why": str(error)})
            return False

    async def _take(self) -> bool:
        try:
            lease = await self._client.get(LEASE, self._key.namespace, self._key.name, Lease)
        except NotFound:
            return await self._create()
        holder = lease.spec.holder_identity
        if holder and holder != self._identity and not self._ran_out(lease):
            return False
        await self._write(lease, holder=self._identity, duration=int(self._timing.duration))
        return True

    def _ran_out(self, lease: Lease) -> bool:
        """Whether we have watched this very record, unrenewed, for longer than its holder asked for."""
        if lease.metadata.resource_version != self._seen[0]:
            self._seen = (lease.metadata.resource_version, self._time())
        seconds = lease.spec.lease_duration_seconds or self._timing.duration
        return self._time() - self._seen[1] > seconds

    async def _create(self) -> bool:
        spec = LeaseSpec(lease_transitions=0)
        missing = Lease(Meta(name=self._key.name, namespace=self._key.namespace), spec)
        await self._client.create(LEASE, self._manifest(missing, self._identity, int(self._timing.duration)), Lease)
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

    @staticmethod
    def _time() -> float:
        return asyncio.get_running_loop().time()
