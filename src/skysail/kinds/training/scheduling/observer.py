"""Observer of gang schedulers: caches of kinds that the cluster may not serve, and live reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from skysail.base.names import Label
from skysail.kinds.training import scheduling
from skysail.kinds.training.api.training_job import TrainingJob
from skysail.kinds.training.children import naming
from skysail.kinds.training.scheduling.gang_scheduler import Gang, Known
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import Resource
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import Client
from skysail.kube.client.errors import NotFound

Serves = Callable[[Resource], bool | None]


def serves_nothing(_: Resource) -> bool:
    """Return False: without discovery no optional kind is served."""
    return False


class Sight:
    """Observer. `caches` are indexed by namespace and UID of the owner; `serves` is None until discovery is done."""

    def __init__(self, client: Client, caches: tuple[Cache[Any], ...], serves: Serves) -> None:
        self._client = client
        self._caches = {cache.resource: cache for cache in caches}
        self._serves = serves

    def known(self, job: TrainingJob) -> Known:
        """Return the cached state."""
        gang = scheduling.of(job.spec)
        return Known(
            is_served=None if gang is None else self._is_served(gang.resource),
            objects=tuple(
                (resource, each)
                for resource, cache in self._caches.items()
                for each in cache.by("owner", job.metadata.identity)
            ),
        )

    async def closer(self, job: TrainingJob, known: Known, *, begins: bool) -> Known:
        """Return the live state with its facts, if an attempt starts or would have to end; otherwise the cached state.

        A lagging cache may not contain the admission of the current attempt yet.
        """
        gang = scheduling.of(job.spec)
        if gang is None or not known.is_served:
            return known
        cached = known.object(gang.resource)
        if cached is not None and not begins and gang.revoked(cached) is None:
            return known
        others = tuple(row for row in known.objects if row[0] != gang.resource)
        found = await self._find(job, gang)
        self._remember(gang.resource, cached, found)
        return Known(
            is_served=True,
            objects=others if found is None else (*others, (gang.resource, found)),
            is_gone=found is None,
            facts=await gang.facts(self._client, job, found),
        )

    def _is_served(self, resource: Resource) -> bool | None:
        """Return None for a kind that is served but not listed yet."""
        served = self._serves(resource)
        return None if served and not self._caches[resource].synced.is_set() else served

    def _remember(self, resource: Resource, cached: Object | None, found: Object | None) -> None:
        """Update the cache with a live read. An object without our label is never watched, so it is not cached."""
        if found is None and cached is not None:
            self._caches[resource].ended(cached)
        elif found is not None and Label.TRAINING_JOB_UID in (found.metadata.labels or {}):
            self._caches[resource].wrote(found)

    async def _find(self, job: TrainingJob, gang: Gang) -> Object | None:
        name = naming.gang(job.metadata.name)
        try:
            found = await self._client.get(gang.resource, job.metadata.namespace, name, gang.type)
        except NotFound:
            return None
        return found if found.metadata.is_controlled_by(job.metadata) else None
