"""The pods of the benchmark: how they are written, and when each was first seen in each state."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import Any

from skysail.kube.api.objects import Object
from skysail.kube.api.resources import POD
from skysail.kube.cache.cache import Cache
from skysail.kube.cache.reflector import Reflector
from skysail.kube.client.client import Client
from skysail.node.pod_types import Pod

SPACE = "bench-pods"
_TIMEOUT_SECONDS = 180


def manifest(name: str, *command: str, image: str = "busybox", **metadata: Any) -> dict[str, Any]:
    box = {"name": "main", "image": image, "command": list(command)}
    spec = {"containers": [box], "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": SPACE, **metadata},
        "spec": spec,
    }


class Pods:
    """`seen` has the moment for each name and state; states are phases, true conditions, and `gone`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._changed = asyncio.Event()
        self._cache = Cache(POD, Pod)
        self._cache.feeds = (SPACE,)
        self._cache.subscribe(self._look)
        self.seen: dict[tuple[str, str], float] = {}

    @asynccontextmanager
    async def watched(self):
        watching = asyncio.create_task(Reflector(self._client, self._cache, namespace=SPACE).run())
        await self._cache.synced.wait()
        try:
            yield self
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def create(self, *manifests: dict[str, Any]) -> float:
        """When it was begun."""
        began = time.monotonic()
        await asyncio.gather(*(self._client.create(POD, one, Object) for one in manifests))
        return began

    async def delete(self, *names: str) -> float:
        began = time.monotonic()
        found = [pod for pod in self._cache.all() if pod.metadata.name in names]
        await asyncio.gather(*(self._client.delete(POD, pod, Object) for pod in found))
        return began

    async def until(self, state: str, *names: str) -> float:
        """When the last of them was there."""
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            while any((name, state) not in self.seen for name in names):
                self._changed.clear()
                await self._changed.wait()
        return max(self.seen[name, state] for name in names)

    def address(self, name: str) -> str:
        return next(pod.status.pod_ip or "" for pod in self._cache.all() if pod.metadata.name == name)

    def _look(self, old: Pod | None, new: Pod | None) -> None:
        one = new or old
        assert one is not None, "something changed"
        states = {"gone"} if new is None else {new.status.phase, *_true_conditions(new)}
        for state in states:
            self.seen.setdefault((one.metadata.name, state), time.monotonic())
        self._changed.set()


def _true_conditions(pod: Pod) -> set[str]:
    return {row["type"] for row in pod.status.conditions if row["status"] == "True"}
