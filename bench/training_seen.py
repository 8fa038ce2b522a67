"""When the pods of each job ran, and when its status said so: both as one watcher sees them."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Self

from bench.at_once import each
from bench.training_jobs import HELD, RUNS, Shape
from skysail.kinds.training.objects import Pod
from skysail.kube.api.objects import Key, Object
from skysail.kube.api.resources import POD
from skysail.kube.cache.cache import Cache
from skysail.kube.cache.reflector import Reflector
from skysail.kube.client.client import Client

_TIMEOUT_SECONDS = 400.0


class Jobs:
    """Of one namespace. `ran` has the moment at which the last pod of each job ran, `told` that of its status."""

    def __init__(self, client: Client, shape: Shape, space: str) -> None:
        self._client = client
        self._shape = shape
        self._space = space
        self._changed = asyncio.Event()
        self._running: dict[str, set[str]] = defaultdict(set)
        self.ran: dict[str, float] = {}
        self.told: dict[tuple[str, str], float] = {}

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[Self]:
        pods, roots = Cache(POD, Pod), Cache(self._shape.resource, self._shape.type)
        pods.subscribe(self._look_at_pod)
        roots.subscribe(self._look_at_root)
        caches: tuple[Cache[Any], ...] = (pods, roots)
        for cache in caches:
            cache.feeds = (self._space,)
        watching = [
            asyncio.create_task(Reflector(self._client, cache, namespace=self._space).run()) for cache in caches
        ]
        for cache in caches:
            await cache.synced.wait()
        try:
            yield self
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    async def create(self, names: Iterable[str], *, held: bool = False) -> list[str]:
        """The names that their statuses are known by."""
        return await each(names, self._hold if held else self._begin)

    async def until_running(self, names: Iterable[str]) -> tuple[float, float]:
        """When the last pod of them ran, and when the last status said so."""
        wanted = set(names)
        statuses = {(name, RUNS) for name in wanted}
        await self._until(lambda: self.ran.keys() >= wanted and self.told.keys() >= statuses)
        return max(self.ran[name] for name in wanted), max(self.told[status] for status in statuses)

    async def until_held(self, names: Iterable[str]) -> None:
        wanted = {(name, HELD) for name in names}
        await self._until(lambda: self.told.keys() >= wanted)

    def late(self, names: Iterable[str]) -> list[float]:
        """Seconds for each job, from its last pod's change to its status."""
        return [self.told[name, RUNS] - self.ran[name] for name in names]

    async def _until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            while not is_so():
                self._changed.clear()
                await self._changed.wait()

    async def _begin(self, name: str) -> str:
        return await self._make(self._shape.manifests(Key(self._space, name)))

    async def _hold(self, name: str) -> str:
        return await self._make(self._shape.held(Key(self._space, name)))

    async def _make(self, manifests: Any) -> str:
        for resource, manifest in manifests:
            made = await self._client.create(resource, manifest, Object)
        return made.metadata.name

    def _look_at_pod(self, _: Pod | None, pod: Pod | None) -> None:
        if pod is None or not pod.is_running:
            return
        name = (pod.metadata.labels or {})[self._shape.label]
        self._running[name].add(pod.metadata.name)
        if len(self._running[name]) == self._shape.pods and name not in self.ran:
            self.ran[name] = time.monotonic()
            self._changed.set()

    def _look_at_root(self, _: Any, root: Any) -> None:
        word = self._shape.says(root) if root is not None else ""
        if word and (root.metadata.name, word) not in self.told:
            self.told[root.metadata.name, word] = time.monotonic()
            self._changed.set()
