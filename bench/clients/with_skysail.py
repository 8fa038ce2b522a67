"""The controller on Skysail's own core: reflectors, caches, queue and loop as the operator joins them."""

from __future__ import annotations

import asyncio
import random
import ssl
from typing import Any

import msgspec

from bench.clients.ledger import Ledger
from bench.size import Size
from bench.workload import SENT
from skysail.base.metrics import Metrics
from skysail.core.actions import Event, Plan
from skysail.core.controller import Controller
from skysail.core.executor import CacheRegistry, Executor
from skysail.core.fence import AlwaysLeader
from skysail.kinds.training.api.training_job import TRAINING_JOB, TrainingJob
from skysail.kube.api.objects import Key, Object
from skysail.kube.api.resources import POD, Resource
from skysail.kube.cache.cache import Cache, index_by_owner, index_by_uid
from skysail.kube.cache.reflector import ListObserver, Reflector
from skysail.kube.client.client import Client
from skysail.kube.client.http_transport import HttpTransport
from skysail.kube.client.kubeconfig import Access


class _PodSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    node_name: str = ""


class _ContainerStatus(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    name: str
    ready: bool = False
    restart_count: int = 0


class _PodStatus(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    phase: str = ""
    reason: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    container_statuses: tuple[_ContainerStatus, ...] = ()


class Pod(Object, frozen=True, gc=False):
    """A pod, as far as a training controller reads it."""

    spec: _PodSpec
    status: _PodStatus = _PodStatus()


class _Snapshot(msgspec.Struct, frozen=True):
    object: TrainingJob
    pods: tuple[Pod, ...]


class _Controller:
    """Writes the number of running pods into the status of their job."""

    resource = TRAINING_JOB.resource

    def __init__(self, jobs: Cache[TrainingJob], pods: Cache[Pod], ledger: Ledger) -> None:
        self._jobs = jobs
        self._pods = pods
        self._ledger = ledger

    async def observe(self, key: Key) -> _Snapshot | None:
        job = self._jobs.get(key)
        return None if job is None else _Snapshot(job, tuple(self._pods.by("owner", job.metadata.identity)))

    def plan(self, snapshot: _Snapshot) -> Plan:
        running = sum(pod.status.phase == "Running" for pod in snapshot.pods)
        old = snapshot.object.status
        new = msgspec.structs.replace(old, replicas=running, phase="Running" if running else "Pending")
        self._ledger.looked(snapshot.object.metadata.uid, is_content=new == old)
        return Plan(status=new)

    def on_rejected(self, snapshot: _Snapshot, event: str) -> msgspec.Struct:
        raise RuntimeError(f"The replay server refuses nothing, and yet {snapshot.object.metadata.name}: {event}")


class WithSkysail:
    """`list_observer` is the collector's policy; the operator has one, a test of this program must not."""

    def __init__(self, url: str, size: Size, list_observer: ListObserver) -> None:
        self.ledger = Ledger(size.jobs)
        rng = random.Random(1)
        self._transport = HttpTransport(Access(server=url, tls=ssl.create_default_context(), token=lambda: None))
        client = Client(self._transport)
        self._jobs = Cache(TRAINING_JOB.resource, TrainingJob, {"uid": index_by_uid})
        self._pods = Cache(POD, Pod, {"owner": index_by_owner})
        executor = Executor(client, CacheRegistry(self._jobs, self._pods), AlwaysLeader())
        controller = _Controller(self._jobs, self._pods, self.ledger)
        self._loop = Controller(controller, executor, self, rng=rng, metrics=Metrics())
        self._jobs.subscribe(self._loop.enqueue_object)
        self._pods.subscribe(self._pod_changed)
        self._reflectors: list[Reflector[Any]] = [
            Reflector(client, self._jobs, list_observer=list_observer, rng=rng),
            Reflector(client, self._pods, list_observer=list_observer, rng=rng),
        ]
        self._tasks: list[asyncio.Task[None]] = []

    async def sync(self) -> None:
        self._tasks += [asyncio.create_task(reflector.run()) for reflector in self._reflectors]
        await self._jobs.synced.wait()
        await self._pods.synced.wait()

    async def work(self) -> None:
        self._tasks.append(asyncio.create_task(self._loop.run()))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._transport.close()

    def record(self, resource: Resource, object_: Object, event: Event) -> None:
        """This controller has nothing to tell."""

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        assert pod is not None, "a change has a before or an after"
        for owner in index_by_owner(pod):
            self.ledger.saw(owner.value, (pod.metadata.annotations or {}).get(SENT))
            for job in self._jobs.by("uid", owner):
                self._loop.queue.add(job.metadata.key)
