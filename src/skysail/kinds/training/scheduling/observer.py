"""Observer of gang schedulers: caches of kinds that the cluster may not serve, and live reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from skysail.base.names import Label
from skysail.core.live_reads import find_child
from skysail.kinds.training import scheduling
from skysail.kinds.training.api.training_job import TrainingJob
from skysail.kinds.training.children import naming
from skysail.kinds.training.scheduling.gang_scheduler import GangState
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import Resource
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import Client

IsServed = Callable[[Resource], bool | None]


def serves_nothing(_: Resource) -> bool:
    """Return False: without discovery no optional kind is served."""
    return False


class GangObserver:
    """Observer. `caches` are indexed by namespace and UID of the owner; `serves` is None until discovery is done."""

    def __init__(self, client: Client, caches: tuple[Cache[Any], ...], serves: IsServed) -> None:
        self._client = client
        self._caches = {cache.resource: cache for cache in caches}
        self._serves = serves

    def cached(self, job: TrainingJob) -> GangState:
        """Return the cached state."""
        scheduler = scheduling.for_spec(job.spec)
        return GangState(
            is_served=None if scheduler is None else self._is_served(scheduler.resource),
            objects=tuple(
                (resource, each)
                for resource, cache in self._caches.items()
                for each in cache.by("owner", job.metadata.identity)
            ),
        )

    async def live(self, job: TrainingJob, gang_state: GangState, *, begins: bool) -> GangState:
        """Return the live state with its facts, if an attempt starts or would have to end; otherwise the cached state.

        A lagging cache may not contain the admission of the current attempt yet.
        """
        scheduler = scheduling.for_spec(job.spec)
        if scheduler is None or not gang_state.is_served:
            return gang_state
        cached = gang_state.object(scheduler.resource)
        if cached is not None and not begins and scheduler.eviction_reason(cached) is None:
            return gang_state
        others = tuple(row for row in gang_state.objects if row[0] != scheduler.resource)
        name = naming.gang(job.metadata.name)
        found = await find_child(self._client, scheduler.resource, job, name, scheduler.type)
        self._remember(scheduler.resource, cached, found)
        return GangState(
            is_served=True,
            objects=others if found is None else (*others, (scheduler.resource, found)),
            is_gone=found is None,
            facts=await scheduler.facts(self._client, job, found),
        )

    def _is_served(self, resource: Resource) -> bool | None:
        """Return None for a kind that is served but not listed yet."""
        served = self._serves(resource)
        return None if served and not self._caches[resource].synced.is_set() else served

    def _remember(self, resource: Resource, cached: Object | None, found: Object | None) -> None:
        """Update the cache with a live read. An object without our label is never watched, so it is not cached."""
        if found is None and cached is not None:
            self._caches[resource].mark_deleted(cached)
        elif found is not None and Label.TRAINING_JOB_UID in (found.metadata.labels or {}):
            self._caches[resource].record_write(found)
