"""Live facts about a pod that waits: answers of cluster autoscalers, and other pods of its Job.

A failed read is an unknown fact, and an unknown fact places no pod.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from datetime import datetime

import msgspec

from skysail.base.rate_limiter import Ration
from skysail.base.ttl_cache import Memory
from skysail.kinds.offload.objects import Pod, parse_time
from skysail.kinds.offload.plan.facts import AutoscalerAnswer
from skysail.kube.api.resources import EVENT, POD
from skysail.kube.client.client import Client, decode_reply
from skysail.kube.client.errors import KubeError
from skysail.kube.diagnostics import EventNote

# The cluster autoscaler and Karpenter promise a node by these events.
_SCALE_UP = frozenset({"TriggeredScaleUp", "Nominated"})
_CANNOT_HELP = "NotTriggerScaleUp"
# The label that the Job controller sets on its pods.
_JOB_UID = "batch.kubernetes.io/controller-uid"
_REMEMBERED_SECONDS = 5.0
# Limit requests: the API server scans all events of the namespace for each of them.
_RATE = 10.0
_BURST = 50.0


class _Events(msgspec.Struct, frozen=True):
    items: tuple[EventNote, ...] = ()


class _PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""


class _PodStatus(msgspec.Struct, frozen=True):
    phase: str = ""


class _BoundPod(msgspec.Struct, frozen=True):
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()


class _Pods(msgspec.Struct, frozen=True):
    items: tuple[_BoundPod, ...] = ()


class _GangPods(msgspec.Struct, frozen=True):
    items: tuple[Pod, ...] = ()


class PendingFacts:
    """Reads events and pods. Requests are rate-limited; above the limit a fact is unknown."""

    def __init__(self, client: Client, cloud_nodes: Collection[str], clock: Callable[[], float]) -> None:
        self._client = client
        self._cloud_nodes = frozenset(cloud_nodes)
        self._ration = Ration(rate=_RATE, burst=_BURST)
        self._answers: Memory[str, AutoscalerAnswer] = Memory(clock)
        self._running: Memory[str, bool] = Memory(clock)

    async def autoscaler(self, pod: Pod) -> AutoscalerAnswer | None:
        """Return what cluster autoscalers said about the pod, or None if that is unknown."""
        try:
            return await self._answers.get_or_fetch(
                pod.metadata.uid, lambda: self._read_events(pod), ttl=lambda _: _REMEMBERED_SECONDS
            )
        except (KubeError, _Limited):
            return None

    async def runs_in_cluster(self, namespace: str, job_uid: str) -> bool | None:
        """Return whether a pod of the Job has an ordinary node and is not finished, or None if that is unknown."""
        try:
            return await self._running.get_or_fetch(
                job_uid, lambda: self._read_pods(namespace, job_uid), ttl=lambda _: _REMEMBERED_SECONDS
            )
        except (KubeError, _Limited):
            return None

    async def siblings(self, pod: Pod, selector: str) -> tuple[Pod, ...] | None:
        """Return the other pods of a gang that have not finished, or None if they are unknown."""
        try:
            self._spend()
            page = await self._client.list_page(POD, pod.metadata.namespace, {"labelSelector": selector})
            found = decode_reply(page, _GangPods).items
        except (KubeError, _Limited):
            return None
        own = pod.metadata.uid, pod.metadata.name
        return tuple(
            other
            for other in found
            if (other.metadata.uid, other.metadata.name) != own
            and not other.is_finished
            and not other.metadata.is_deleting
        )

    async def _read_events(self, pod: Pod) -> AutoscalerAnswer:
        self._spend()
        query = {"fieldSelector": f"regarding.uid={pod.metadata.uid}"}
        page = await self._client.list_page(EVENT, pod.metadata.namespace, query)
        events = decode_reply(page, _Events).items
        scale_up = _newest(event for event in events if event.reason in _SCALE_UP)
        refusal = _newest(event for event in events if event.reason == _CANNOT_HELP)
        is_hopeless = refusal is not None and (scale_up is None or refusal > scale_up)
        return AutoscalerAnswer(None if is_hopeless else scale_up, is_hopeless)

    async def _read_pods(self, namespace: str, job_uid: str) -> bool:
        self._spend()
        page = await self._client.list_page(POD, namespace, {"labelSelector": f"{_JOB_UID}={job_uid}"})
        return any(
            pod.spec.node_name
            and pod.spec.node_name not in self._cloud_nodes
            and pod.status.phase not in {"Succeeded", "Failed"}
            for pod in decode_reply(page, _Pods).items
        )

    def _spend(self) -> None:
        if not self._ration.try_acquire(asyncio.get_running_loop().time()):
            raise _Limited


class _Limited(Exception):
    """Too many requests in a short time."""


def _newest(events: Iterable[EventNote]) -> datetime | None:
    times = [parse_time(event.time) for event in events if event.time]
    return max(times, default=None)
