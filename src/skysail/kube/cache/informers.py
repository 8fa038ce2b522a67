"""All caches of a process, filled while the cluster serves their kinds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Any

from skysail.kube.cache.audit import AuditResult, audit
from skysail.kube.cache.cache import Cache
from skysail.kube.cache.discovery import CrdInfo, Discovery
from skysail.kube.cache.reflector import ListObserver, Reflector
from skysail.kube.client.client import Client


class Informers:
    """Starts a reflector per kind and namespace when its CRD appears, and stops it when the CRD is deleted."""

    def __init__(
        self, client: Client, *, namespaces: tuple[str, ...], list_observer: ListObserver, rng: random.Random
    ) -> None:
        self._client = client
        self._namespaces = namespaces
        self._list_observer = list_observer
        self._rng = rng
        self._built_in: list[Cache[Any]] = []
        self._custom: list[tuple[Cache[Any], Callable[[CrdInfo], bool]]] = []
        # By cache, not by kind: two engines may have separate caches of one kind.
        self._reflectors: dict[Cache[Any], list[Reflector[Any]]] = {}
        self._tasks: dict[Cache[Any], list[asyncio.Task[None]]] = {}
        self.discovery = Discovery()

    def add(self, cache: Cache[Any], desired: Callable[[CrdInfo], bool] = lambda _: True) -> None:
        """Add a cache of a custom kind. Call before `run`."""
        self._feed(cache)
        self._custom.append((cache, desired))

    def add_built_in(self, cache: Cache[Any]) -> None:
        """Add a cache of a kind that every cluster serves. Call before `run`."""
        self._feed(cache)
        self._built_in.append(cache)

    async def run(self) -> None:
        """Run all reflectors until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for cache in (self.discovery.cache, *self._built_in):
                self._start(tasks, cache)
            for cache, desired in self._custom:
                self._follow(tasks, cache, desired)

    @property
    def caches(self) -> Iterable[Cache[Any]]:
        """Return the caches whose kind is served now."""
        known = [self.discovery.cache, *self._built_in, *(cache for cache, _ in self._custom)]
        return [cache for cache in known if cache in self._reflectors]

    @property
    def reflectors(self) -> dict[str, list[Reflector[Any]]]:
        """Return the running reflectors by kind."""
        found: dict[str, list[Reflector[Any]]] = {}
        for cache, reflectors in self._reflectors.items():
            found.setdefault(cache.resource.crd_name, []).extend(reflectors)
        return found

    @property
    def waiting_for(self) -> list[str]:
        """Return the kinds that are served but not yet listed."""
        return [cache.resource.crd_name for cache in self.caches if not cache.synced.is_set()]

    async def audit(self) -> list[AuditResult]:
        """Compare every cache with the API server, and list those again that differ."""
        audit_results = [(cache, await audit(self._client, cache)) for cache in self.caches if cache.synced.is_set()]
        for cache, audit_result in audit_results:
            if audit_result.differs:
                for reflector in self._reflectors.get(cache, ()):
                    reflector.relist()
        return [audit_result for _, audit_result in audit_results]

    def _feed(self, cache: Cache[Any]) -> None:
        has_own_feeds = cache.feeds != ("",)
        if self._namespaces and cache.resource.namespaced and not has_own_feeds:
            cache.feeds = self._namespaces

    def _follow(self, tasks: asyncio.TaskGroup, cache: Cache[Any], desired: Callable[[CrdInfo], bool]) -> None:
        def changed(is_served: bool) -> None:  # noqa: FBT001 (the listener's signature)
            if is_served:
                self._start(tasks, cache)
            else:
                self._stop(cache)

        self.discovery.follow(cache.resource, changed, desired)

    def _start(self, tasks: asyncio.TaskGroup, cache: Cache[Any]) -> None:
        name = cache.resource.crd_name
        reflectors = [
            Reflector(self._client, cache, namespace=namespace, list_observer=self._list_observer, rng=self._rng)
            for namespace in cache.feeds
        ]
        self._reflectors[cache] = reflectors
        self._tasks[cache] = [tasks.create_task(reflector.run(), name=f"watch {name}") for reflector in reflectors]

    def _stop(self, cache: Cache[Any]) -> None:
        for task in self._tasks.pop(cache, ()):
            task.cancel()
        self._reflectors.pop(cache, None)
        cache.clear()
