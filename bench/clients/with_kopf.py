"""The controller on Kopf, at its best: events only feed a store and a queue of our own, which Kopf knows nothing of.

*Tuned* keeps Kopf from everything that this controller does not need: it lists in chunks, compares no states, stores no
progress, watches no definitions; and keeps only those fields of a pod that Skysail's cache keeps. *Default* is Kopf as
it comes. Both have Skysail's queue and collector policy, because those are not what is compared.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import aiohttp
import kopf
import msgspec

from bench.clients.ledger import Ledger
from bench.size import Size
from bench.workload import SENT
from skysail.core.workqueue import WorkQueue
from skysail.kinds.training.api.training_job import TRAINING_JOB
from skysail.kube.api.resources import POD
from skysail.kube.cache.reflector import ListObserver
from skysail.kube.client.transport import JSON

_WORKERS = 16
_KEPT_METADATA = ("name", "namespace", "uid", "resourceVersion", "labels", "annotations", "ownerReferences")

Body = dict[str, Any]


class NoDiffBase(kopf.DiffBaseStorage):
    """Remembers no earlier state, so there is nothing to compare with."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None


class NoProgress(kopf.ProgressStorage):
    """Remembers nothing of handlers: these have none to resume."""

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None

    def purge(self, **_: Any) -> None:
        return None

    def touch(self, **_: Any) -> None:
        return None

    def clear(self, *, essence: Any) -> Any:
        return essence


def tune(settings: kopf.OperatorSettings) -> None:
    """Everything public that makes Kopf cheaper for handlers of raw events."""
    settings.persistence.diffbase_storage = NoDiffBase()
    settings.persistence.progress_storage = NoProgress()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.watching.chunk_size = 500


class WithKopf:
    def __init__(self, url: str, size: Size, list_observer: ListObserver, *, is_tuned: bool) -> None:
        self.ledger = Ledger(size.jobs)
        self._url = url
        self._size = size
        self._gate = list_observer
        self._is_tuned = is_tuned
        self._jobs: dict[str, Body] = {}
        self._pods: dict[str, dict[str, Body]] = {}
        self._pod_count = 0
        self._synced = asyncio.Event()
        self._stop = asyncio.Event()
        self._queue: WorkQueue[str] = WorkQueue(rng=random.Random(1))
        self._session = aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=48))
        self._tasks: list[asyncio.Task[None]] = []
        self._operator: asyncio.Task[None] | None = None

    async def sync(self) -> None:
        settings = kopf.OperatorSettings()
        if self._is_tuned:
            tune(settings)
        self._gate.began()
        self._operator = asyncio.create_task(
            kopf.operator(
                registry=self._registry(), settings=settings, standalone=True, clusterwide=True, stop_flag=self._stop
            )
        )
        synced = asyncio.create_task(self._synced.wait())
        await asyncio.wait({synced, self._operator}, return_when=asyncio.FIRST_COMPLETED)
        if self._operator.done():
            raise RuntimeError("Kopf ended before it had listed everything") from self._operator.exception()
        self._gate.ended(objects=30_000)

    async def work(self) -> None:
        self._tasks += [asyncio.create_task(self._reconcile_for_ever()) for _ in range(_WORKERS)]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._stop.set()
        await asyncio.gather(*self._tasks, *filter(None, [self._operator]), return_exceptions=True)
        await self._session.close()

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        job = TRAINING_JOB.resource
        kopf.on.login(registry=registry)(self._login)
        kopf.on.event(job.group, job.version, job.plural, registry=registry)(self._job_changed)
        kopf.on.event(POD.group, POD.version, POD.plural, registry=registry)(self._pod_changed)
        return registry

    def _login(self, **_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(server=self._url)

    async def _job_changed(self, event: Any, **_: Any) -> None:
        job = event["object"]
        self._jobs[job["metadata"]["uid"]] = job
        self._queue.add(job["metadata"]["uid"])
        self._look_whether_synced()

    async def _pod_changed(self, event: Any, **_: Any) -> None:
        pod = event["object"]
        owner = next(owner["uid"] for owner in pod["metadata"]["ownerReferences"] if owner.get("controller"))
        known = self._pods.setdefault(owner, {})
        self._pod_count += pod["metadata"]["name"] not in known
        known[pod["metadata"]["name"]] = _slim(pod) if self._is_tuned else pod
        self.ledger.saw(owner, pod["metadata"]["annotations"].get(SENT))
        self._queue.add(owner)
        self._look_whether_synced()

    def _look_whether_synced(self) -> None:
        if len(self._jobs) == self._size.jobs and self._pod_count == self._size.pods:
            self._synced.set()

    async def _reconcile_for_ever(self) -> None:
        while True:
            uid, _ = await self._queue.get()
            try:
                await self._reconcile(uid)
            finally:
                self._queue.done(uid)

    async def _reconcile(self, uid: str) -> None:
        job = self._jobs[uid]
        running = sum(pod["status"]["phase"] == "Running" for pod in self._pods.get(uid, {}).values())
        old = job.get("status", {})
        new = {**old, "replicas": running, "phase": "Running" if running else "Pending"}
        self.ledger.looked(uid, is_content=new == old)
        if new != old:
            await self._write({**job, "status": new})

    async def _write(self, job: Body) -> None:
        """A conflict is left to the event that caused it: it brings the job back."""
        metadata = job["metadata"]
        path = TRAINING_JOB.resource.path(metadata["namespace"], metadata["name"], "status")
        body = msgspec.json.encode(job)
        async with self._session.put(path, data=body, headers={"Content-Type": JSON}) as reply:
            await reply.read()


def _slim(pod: Body) -> Body:
    metadata, status = pod["metadata"], pod["status"]
    return {
        "metadata": {name: metadata[name] for name in _KEPT_METADATA},
        "spec": {"nodeName": pod["spec"]["nodeName"]},
        "status": {"phase": status["phase"], "podIP": status["podIP"]},
    }
