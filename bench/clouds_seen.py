"""Pods at a simulated cloud: when each was bound, and when it was first seen in each phase.

Times of the wall clock, because the cloud's ledger, in another process, has those.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

from skysail.claims.limits.offload_policy import OFFLOAD_POLICY
from skysail.kube.api.objects import Key, Object
from skysail.kube.api.resources import POD
from skysail.kube.cache.cache import Cache
from skysail.kube.cache.reflector import Reflector
from skysail.kube.client.client import Client
from skysail.node.pod_types import Pod

NODE_NAME = "modal.com"
GONE = "gone"
_TIMEOUT_SECONDS = 300


def manifest(key: Key, simulate: str, script: str = "") -> dict[str, Any]:
    """A pod that is bound from the beginning: the scheduler is not what is measured."""
    box: dict[str, Any] = {"name": "main", "image": "busybox:1.36"}
    box["env"] = [{"name": "SKYSAIL_SIMULATE", "value": simulate}]
    if script:
        box["command"] = ["sh", "-c", script]
    spec = {
        "nodeName": NODE_NAME,
        "tolerations": [{"operator": "Exists"}],
        "restartPolicy": "Never",
        "containers": [box],
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
    }
    metadata = {"name": key.name, "namespace": key.namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


async def lift_limit(client: Client) -> None:
    """Let a namespace have any number of instances: the default policy of a local cluster allows ten at a time."""
    patch = {"spec": {"maxInstances": 100_000}}
    await client.merge_patch(OFFLOAD_POLICY.resource, "", "default", patch, Object)


class CloudPods:
    """`bound` by UID; `seen` by UID and phase, or `gone`."""

    def __init__(self, client: Client, timeout: float = _TIMEOUT_SECONDS) -> None:
        self._client = client
        self._timeout = timeout
        self._changed = asyncio.Event()
        self._cache = Cache(POD, Pod)
        self._cache.subscribe(self._look)
        self.bound: dict[str, float] = {}
        self.seen: dict[tuple[str, str], float] = {}

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[Self]:
        watching = asyncio.create_task(Reflector(self._client, self._cache).run())
        await self._cache.synced.wait()
        try:
            yield self
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def live(self, *keys: Key, simulate: str, script: str = "") -> list[str]:
        """From their creation to their end, all of them at once; their UIDs."""
        made = await self.create(*keys, simulate=simulate, script=script)
        uids = [pod.metadata.uid for pod in made]
        await self.until("Succeeded", *uids)
        await self.delete(*made)
        return uids

    async def create(self, *keys: Key, simulate: str, script: str = "") -> list[Object]:
        return await asyncio.gather(*(self._create(manifest(key, simulate, script)) for key in keys))

    async def delete(self, *pods: Object) -> None:
        """Until the last one is gone."""
        await asyncio.gather(*(self._client.delete(POD, pod, Object) for pod in pods))
        await self.until(GONE, *(pod.metadata.uid for pod in pods))

    async def until(self, phase: str, *uids: str) -> None:
        async with asyncio.timeout(self._timeout):
            while any((uid, phase) not in self.seen for uid in uids):
                self._changed.clear()
                await self._changed.wait()

    def first(self, uid: str, *phases: str) -> float:
        """When the first of these phases was seen. On a busy machine one may pass unseen."""
        return next(self.seen[uid, phase] for phase in phases if (uid, phase) in self.seen)

    async def _create(self, pod_manifest: dict[str, Any]) -> Object:
        pod = await self._client.create(POD, pod_manifest, Object)
        self.bound[pod.metadata.uid] = time.time()
        return pod

    def _look(self, old: Pod | None, new: Pod | None) -> None:
        one = new or old
        assert one is not None, "something changed"
        self.seen.setdefault((one.metadata.uid, new.status.phase if new else GONE), time.time())
        self._changed.set()
