"""All caches of a process, filled as long as the cluster serves their kinds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Any

from skysail.kube.cache.audit import Finding, audit
from skysail.kube.cache.cache import Cache
from skysail.kube.cache.discovery import Definition, Discovery
from skysail.kube.cache.reflector import Gate, Reflector
from skysail.kube.client.client import Client


class Informers:
    """Starts a reflector per kind (and namespace) when its definition appears, and stops it when that goes."""

    def __init__(self, client: Client, *, namespaces: tuple[str, ...], gate: Gate, rng: random.Random) -> None:
        self._client = client
        self._namespaces = namespaces
        self._gate = gate
        self._rng = rng
        self._built_in: list[Cache[Any]] = []
        self._custom: list[tuple[Cache[Any], Callable[[Definition], bool]]] = []
        # By cache and not by kind: two engines may each hold their own objects of one.
        self._reflectors: dict[Cache[Any], list[Reflector[Any]]] = {}
        self._tasks: dict[Cache[Any], list[asyncio.Task[None]]] = {}
        self.discovery = Discovery()

    def add(self, cache: Cache[Any], wanted: Callable[[Definition], bool] = lambda _: True) -> None:
        """Keep this cache of a custom kind current. Call before `run`."""
        self._feed(cache)
        self._custom.append((cache, wanted))

    def add_built_in(self, cache: Cache[Any]) -> None:
        """Keep this cache of a kind current that every cluster serves. Call before `run`."""
        self._feed(cache)
        self._built_in.append(cache)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for cache in (self.discovery.cache, *self._built_in):
                self._start(tasks, cache)
            for cache, wanted in self._custom:
                self._follow(tasks, cache, wanted)

    @property
    def caches(self) -> Iterable[Cache[Any]]:
        """Those whose kind is served now."""
        known = [self.discovery.cache, *self._built_in, *(cache for cache, _ in self._custom)]
        return [cache for cache in known if cache in self._reflectors]

    @property
    def reflectors(self) -> dict[str, list[Reflector[Any]]]:
        """By kind."""
        found: dict[str, list[Reflector[Any]]] = {}
        for cache, reflectors in self._reflectors.items():
            found.setdefault(cache.resource.crd_name, []).extend(reflectors)
        return found

    @property
    def waiting_for(self) -> list[str]:
        """Kinds that are served and not yet listed."""
        return [cache.resource.crd_name for cache in self.caches if not cache.synced.is_set()]

    async def audit(self) -> list[Finding]:
        """Compare every cache with the server, and fill anew what differs."""
        findings = [(cache, await audit(self._client, cache)) for cache in self.caches if cache.synced.is_set()]
        for cache, finding in findings:
            if finding.differs:
                for reflector in self._reflectors.get(cache, ()):
                    reflector.relist()
        return [finding for _, finding in findings]

    def _feed(self, cache: Cache[Any]) -> None:
        if self._namespaces and cache.resource.namespaced:
            cache.feeds = self._namespaces

    def _follow(self, tasks: asyncio.TaskGroup, cache: Cache[Any], wanted: Callable[[Definition], bool]) -> None:
        def changed(is_served: bool) -> None:  # noqa: FBT001 (the listener's signature)
            if is_served:
                self._start(tasks, cache)
            else:
                self._stop(cache)

        self.discovery.follow(cache.resource, changed, wanted)

    def _start(self, tasks: asyncio.TaskGroup, cache: Cache[Any]) -> None:
        name = cache.resource.crd_name
        reflectors = [
            Reflector(self._client, cache, namespace=namespace, gate=self._gate, rng=self._rng)
            for namespace in cache.feeds
        ]
        self._reflectors[cache] = reflectors
        self._tasks[cache] = [tasks.create_task(reflector.run(), name=f"watch {name}") for reflector in reflectors]

    def _stop(self, cache: Cache[Any]) -> None:
        for task in self._tasks.pop(cache, ()):
            task.cancel()
        self._reflectors.pop(cache, None)
        cache.clear()
