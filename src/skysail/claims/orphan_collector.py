"""Terminates orphans: instances of this cluster without a claim. Foreign instances are never touched."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from skysail.base import tasks
from skysail.claims.dependencies import ClaimDependencies
from skysail.claims.tracking.inventory import InventoryTracker
from skysail.claims.types import CLOUD_INSTANCE, CloudInstance
from skysail.cloud.account import Instance
from skysail.core.actions import TerminateInstance
from skysail.core.fence import Fenced
from skysail.kube.api.objects import Key
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import Client
from skysail.kube.client.errors import KubeError, NotFound

# Repeat a termination request only after this time: a slow termination needs no second request.
_RETRY_SECONDS = 300.0
_MAX_NAMES = 3

log = logging.getLogger(__name__)


def orphans(instances: Iterable[Instance], cluster: str, claims: Callable[[str], bool]) -> list[Instance]:
    """Return running instances of this cluster that name a missing claim. Without a claim name it is foreign."""
    alive = [instance for instance in instances if instance.cluster == cluster and instance.state != "ended"]
    return [instance for instance in alive if instance.claim and not claims(instance.claim)]


class OrphanCollector:
    """Orphan collector of one cloud.

    An orphan is terminated `grace` seconds after its creation, but only if every inventory has shown it for as long as
    inventories may be wrong. A restart resets only the second time.
    """

    def __init__(
        self,
        client: Client,
        inventory: InventoryTracker,
        claims: Cache[CloudInstance],
        *,
        grace: float,
        deps: ClaimDependencies,
    ) -> None:
        self._client = client
        self._inventory = inventory
        self._claims = claims
        self._grace = grace
        self._clock = deps.clock
        self._now = deps.now
        self._since: dict[str, float] = {}
        self._asked: dict[str, float] = {}

    @property
    def orphans(self) -> list[str]:
        """Return the ids of the orphans.

        An inventory may still show an instance that was terminated with its claim. So an instance counts only after
        it was seen for as long as inventories may be wrong.
        """
        certain = self._clock() - self._inventory.cloud.terms.visibility_delay
        return sorted(id_ for id_, since in self._since.items() if since <= certain)

    @property
    def orphan_message(self) -> str:
        """Describe the orphans in a sentence. Returns an empty string if there is none."""
        orphans = self.orphans
        if not orphans:
            return ""
        noun = "instance" if len(orphans) == 1 else "instances"
        ids = ", ".join(orphans[:_MAX_NAMES])
        more = f" and {len(orphans) - _MAX_NAMES} more" if len(orphans) > _MAX_NAMES else ""
        return (
            f"{len(orphans)} {noun} of this cluster without a claim may be billed: {ids}{more}. "
            f"Skysail terminates orphans that are older than {self._grace:.0f} s."
        )

    async def run(self, terminate_instance: Callable[[TerminateInstance], None]) -> None:
        """Collect orphans until cancelled. `terminate_instance` executes a termination behind the fence."""
        await self._claims.synced.wait()
        while True:
            await tasks.run_logged(
                self._sweep_as_leader(terminate_instance), f"orphan collection at {self._inventory.cloud.name}"
            )
            await asyncio.sleep(self._inventory.cloud.terms.poll_interval)

    async def collect(self, terminate_instance: Callable[[TerminateInstance], None]) -> None:
        if self._inventory.latest is None or self._inventory.outage:
            return
        if self._claims.undecodable or not self._claims.synced.is_set():
            return  # an undecodable claim may be the claim of an instance
        instances = orphans(self._inventory.latest.instances, self._inventory.cluster, self._is_claimed)
        now = self._clock()
        self._since = {instance.id: self._since.get(instance.id, now) for instance in instances}
        self._asked = {id_: at for id_, at in self._asked.items() if id_ in self._since and now - at < _RETRY_SECONDS}
        for instance in instances:
            if self._is_due(instance, now - self._since[instance.id]) and instance.id not in self._asked:
                await self._end_orphan(instance, terminate_instance)

    async def _sweep_as_leader(self, terminate_instance: Callable[[TerminateInstance], None]) -> None:
        try:
            await self.collect(terminate_instance)
        except Fenced:
            log.debug("orphan collection skipped, not the leader")

    async def _end_orphan(self, instance: Instance, terminate_instance: Callable[[TerminateInstance], None]) -> None:
        if not await self._is_orphan(instance):
            return
        cloud = self._inventory.cloud.name
        extra = {"cloud": cloud, "instance": instance.id, "claim": instance.claim}
        log.warning("terminating orphaned instance", extra=extra)
        terminate_instance(TerminateInstance(cloud, instance.id, 0.0))
        self._asked[instance.id] = self._clock()

    def _is_due(self, instance: Instance, seen: float) -> bool:
        age = self._now().timestamp() - instance.created
        return seen >= self._grace or (age >= self._grace and seen >= self._inventory.cloud.terms.visibility_delay)

    def _is_claimed(self, name: str) -> bool:
        return self._claims.get(Key("", name)) is not None

    async def _is_orphan(self, instance: Instance) -> bool:
        """Ask the API server, because the cache may lag. Any answer except NotFound keeps the instance."""
        try:
            await self._client.get(CLOUD_INSTANCE.resource, "", instance.claim, CloudInstance)
        except NotFound:
            return True
        except KubeError as error:
            log.info("orphan check failed, instance kept", extra={"instance": instance.id, "why": str(error)})
        return False
