"""An operator process, joined from the real parts, on any transport. Everything in it dies with it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any

from skysail.base.rate_limiter import Ration
from skysail.core.controller import Controller
from skysail.core.executor import CacheRegistry, Executor
from skysail.core.fence import Fenced, FencedTransport
from skysail.kube.cache.audit import audit
from skysail.kube.cache.cache import Cache
from skysail.kube.cache.gc_tuning import GcTuner
from skysail.kube.cache.informers import Informers
from skysail.kube.cache.reflector import Reflector
from skysail.kube.client.client import Client
from skysail.kube.client.errors import KubeError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from datetime import datetime

    from skysail.core.actions import Event
    from skysail.core.controller import Reconciler
    from skysail.kube.api.objects import Object
    from skysail.kube.api.resources import Resource
    from skysail.kube.cache.cache import Index
    from skysail.kube.cache.discovery import Discovery
    from tests.simulation.faults import FaultyTransport

_RESYNC_SECONDS = 600.0
# So little may be written that can wait that a story sees it wait.
_A_SECOND = 0.2


class Process:
    """What a scenario builds its controllers in.

    It acts without a lease, because two processes must be right side by side, until somebody deposes it.
    """

    def __init__(
        self, transport: FaultyTransport, *, now: Callable[[], datetime], seed: int, outside: Any = None
    ) -> None:
        self.transport = transport
        self.outside = outside
        self.client = Client(transport)
        # For those who write on their own: not any more when it was deposed.
        self.acting = Client(FencedTransport(transport, self))
        self.now = now
        self.rng = random.Random(seed)
        self._caches = CacheRegistry()
        self.executor = Executor(self.client, self._caches, self)
        self._is_deposed = False
        self._reflectors: list[tuple[Cache[Any], Reflector[Any]]] = []
        self._informers: Informers | None = None
        self._loops: list[Controller[Any]] = []
        self.background: list[Callable[[], Awaitable[None]]] = []

    def cache(
        self, resource: Resource, type_: type[Object], indexes: Mapping[str, Index[Any]] | None = None
    ) -> Cache[Any]:
        cache: Cache[Any] = Cache(resource, type_, indexes)
        self.fill(cache)
        return cache

    def fill(self, cache: Cache[Any]) -> None:
        """Keep a cache current that the controller made itself."""
        self._caches.add(cache)
        self._reflectors.append((cache, Reflector(self.client, cache, rng=self.rng)))

    def fill_only(self, cache: Cache[Any]) -> None:
        """Keep a cache current that only a executor of its own knows."""
        self._reflectors.append((cache, Reflector(self.client, cache, rng=self.rng)))

    def discover(self, caches: Iterable[Cache[Any]]) -> Discovery:
        """Keep caches current of kinds that the cluster need not have."""
        self._informers = Informers(self.client, namespaces=(), list_observer=GcTuner(), rng=self.rng)
        for cache in caches:
            self._caches.add(cache)
            self._informers.add(cache)
        return self._informers.discovery

    def control(
        self, reconciler: Reconciler[Any], own: Cache[Any], children: Iterable[Cache[Any]] = ()
    ) -> Controller[Any]:
        """Look at an object when it changes, and when something that it controls does."""
        controller = self.add_controller(reconciler, self.executor)
        own.subscribe(controller.enqueue_object)
        for cache in children:
            controller.watch_owned(cache, own)
        return controller

    def add_controller(self, reconciler: Reconciler[Any], executor: Executor) -> Controller[Any]:
        """Return a controller that is subscribed to nothing yet."""
        controller = Controller(reconciler, executor, self, rng=self.rng, metrics=self)
        controller.status_limiter = Ration(rate=_A_SECOND, burst=1.0)
        controller.status_limiter.try_acquire(0.0)  # who comes first waits as well
        self._loops.append(controller)
        return controller

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _, reflector in self._reflectors:
                tasks.create_task(reflector.run())
            if self._informers is not None:
                tasks.create_task(self._informers.run())
            for cache, _ in self._reflectors:
                await cache.synced.wait()
            for controller in self._loops:
                tasks.create_task(controller.run())
            for work in self.background:
                tasks.create_task(_awaited(work))
            tasks.create_task(self._audit_for_ever())

    def depose(self) -> None:
        self._is_deposed = True

    def check(self) -> None:
        """The fence."""
        if self._is_deposed:
            raise Fenced

    def record(self, resource: Resource, object_: Object, event: Event) -> None:
        """Events are for people; nobody is here."""

    def reconcile_started(self, kind: str, waited: float) -> None: ...

    def reconcile_finished(self, kind: str, result: str, seconds: float) -> None: ...

    async def _audit_for_ever(self) -> None:
        while True:
            await asyncio.sleep(_RESYNC_SECONDS * self.rng.uniform(0.9, 1.1))
            if self._informers is not None:
                with contextlib.suppress(KubeError):
                    await self._informers.audit()
            for cache, reflector in self._reflectors:
                try:
                    audit_result = await audit(self.client, cache)
                except KubeError:
                    continue
                if audit_result.differs:
                    reflector.relist()


async def _awaited(work: Callable[[], Awaitable[None]]) -> None:
    await work()
