"""Reconciler of TrainingJobs: caches of their children, and live reads where a cache is not enough."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

import msgspec

from skysail.base.names import Label
from skysail.core import pod_pending
from skysail.core.actions import Note, Plan
from skysail.core.controller import Loop
from skysail.core.errors import Stale
from skysail.core.pod_pending import Obstacle
from skysail.kinds.training import preflight, scheduling
from skysail.kinds.training.admission.validation import objections
from skysail.kinds.training.api.training_job import TRAINING_JOB, TrainingJob
from skysail.kinds.training.children import naming, volumes
from skysail.kinds.training.children.progress_endpoint import Terms
from skysail.kinds.training.children.replica_groups import groups
from skysail.kinds.training.objects import Job, Pod
from skysail.kinds.training.plan import attempts, completion, failure, planner, termination
from skysail.kinds.training.scheduling.observer import Serves, Sight, serves_nothing
from skysail.kinds.training.snapshot import Predecessor, Snapshot
from skysail.kube import diagnostics
from skysail.kube.api.objects import IndexKey, Key, Object
from skysail.kube.api.rbac import Right, reading
from skysail.kube.api.resources import CONFIG_MAP, JOB, PERSISTENT_VOLUME_CLAIM, POD, SERVICE, Resource
from skysail.kube.cache.cache import Cache, label_values, owner_uids, uids
from skysail.kube.cache.discovery import Discovery
from skysail.kube.client.client import Client, decoded
from skysail.kube.client.errors import NotFound
from skysail.kube.diagnostics import Evidence

RIGHTS = (
    reading(TRAINING_JOB.resource),
    # `patch` removes finalizers of a replaced operator; `delete` is for the TTL.
    Right(TRAINING_JOB.resource, ("delete", "patch")),
    Right(TRAINING_JOB.resource, ("update",), subresource="status"),
    # OwnerReferencesPermissionEnforcement requires this right to set blockOwnerDeletion.
    Right(TRAINING_JOB.resource, ("update",), subresource="finalizers"),
    reading(JOB),
    Right(JOB, ("create", "delete", "patch")),
    reading(SERVICE),
    Right(SERVICE, ("create", "delete", "patch")),
    Right(CONFIG_MAP, ("create", "get", "patch")),
    Right(PERSISTENT_VOLUME_CLAIM, ("create", "get", "patch")),
    reading(POD),
    # `delete` is for pods whose Job was deleted without them.
    Right(POD, ("delete",)),
    *diagnostics.RIGHTS,
    *(right for gang in scheduling.GANGS.values() for right in gang.rights),
)

# Launchers such as torchrun print a page of their own after the error of the program.
_LOG_LINES = 100
_OURS = {"labelSelector": Label.TRAINING_JOB_UID}
# The Job controller creates pods at once; if pods are missing after this time, something blocks it.
_PATIENCE = timedelta(seconds=10)

T = TypeVar("T", bound=Object)
# Pods are owned by Jobs: a label leads to their TrainingJob.
training_jobs = label_values(Label.TRAINING_JOB_UID)


class _List(msgspec.Struct, Generic[T], frozen=True):
    items: tuple[T, ...]


class Caches(msgspec.Struct, frozen=True):
    """Caches of TrainingJobs and their children. Other objects of the cluster are not cached."""

    training: Cache[TrainingJob]
    jobs: Cache[Job]
    pods: Cache[Pod]
    services: Cache[Object]
    # Kinds of gang schedulers, in the order of the registry. The cluster may not serve them.
    gangs: tuple[Cache[Any], ...] = ()

    @classmethod
    def make(cls) -> Caches:
        return cls(
            training=Cache(TRAINING_JOB.resource, TrainingJob, {"uid": uids}),
            jobs=Cache(JOB, Job, {"owner": owner_uids}, _OURS),
            pods=Cache(POD, Pod, {"training": training_jobs}, _OURS),
            services=Cache(SERVICE, Object, {"owner": owner_uids}, _OURS),
            gangs=tuple(
                Cache(gang.resource, gang.type, {"owner": owner_uids}, _OURS) for gang in scheduling.GANGS.values()
            ),
        )

    @property
    def children(self) -> tuple[Cache[Job], Cache[Pod], Cache[Object]]:
        return self.jobs, self.pods, self.services

    def wake(self, loop: Loop[Snapshot], discovery: Discovery) -> None:
        """Enqueue a TrainingJob when one of its children changes.

        Pods are owned by a Job, so their label names the TrainingJob.
        """
        loop.follow(self.jobs, self.training)
        for cache in (self.services, *self.gangs):
            loop.follow(cache, self.training)

        def changed(old: Pod | None, new: Pod | None) -> None:
            jobs = {job for pod in (old, new) if pod for job in training_jobs(pod)}
            for root in [root for job in jobs for root in self.training.by("uid", job)]:
                loop.queue.add(root.metadata.key)

        self.pods.subscribe(changed)
        for cache in self.gangs:
            discovery.follow(cache.resource, lambda _: self._look_at_gangs(loop))

    def _look_at_gangs(self, loop: Loop[Snapshot]) -> None:
        """Enqueue all jobs with a gang scheduler, because one was installed or removed."""
        for job in self.training.all():
            if scheduling.of(job.spec) is not None:
                loop.queue.add(job.metadata.key)


def _nothing_to_read(_: IndexKey) -> bool:
    """Return True: without a log watcher nothing is left to read."""
    return True


class Training:
    """Reconciler of TrainingJobs. `is_settled`: whether all checkpoints printed by finished pods are recorded."""

    resource = TRAINING_JOB.resource

    def __init__(
        self,
        client: Client,
        caches: Caches,
        now: Callable[[], datetime],
        *,
        terms: Callable[[], Terms] = Terms,
        serves: Serves = serves_nothing,
        is_settled: Callable[[IndexKey], bool] = _nothing_to_read,
    ) -> None:
        self._client = client
        self._evidence = Evidence(client)
        self._caches = caches
        self._now = now
        self._terms = terms
        self._gangs = Sight(client, caches.gangs, serves)
        self._is_settled = is_settled

    async def observe(self, key: Key) -> Snapshot | None:
        job = self._caches.training.get(key)
        if job is None:
            return None
        identity = job.metadata.identity
        snapshot = Snapshot(
            object=job,
            now=self._now(),
            jobs=tuple(self._caches.jobs.by("owner", identity)),
            pods=tuple(self._caches.pods.by("training", identity)),
            services=tuple(self._caches.services.by("owner", identity)),
            gang=self._gangs.known(job),
            terms=self._terms(),
        )
        if job.metadata.is_deleting or job.spec.managed_by is not None or job.status.phase in planner.OVER:
            return snapshot
        number = attempts.under_way(snapshot)
        if number is not None:
            return await self._looked_closer(snapshot, number)
        if not planner.begins(snapshot):
            return snapshot
        before = self._predecessor(job)
        if before is not None:
            return msgspec.structs.replace(snapshot, before=before)
        return await self._sure_to_begin(snapshot)

    def plan(self, snapshot: Snapshot) -> Plan:
        return planner.plan(snapshot)

    def refused(self, snapshot: Snapshot, why: Note) -> Plan:
        return planner.refused(snapshot, why)

    def _predecessor(self, job: TrainingJob) -> Predecessor | None:
        """Return the Job of a deleted TrainingJob of the same name that still occupies a name of the next attempt."""
        number = attempts.following(job.status)
        for name in (naming.job(job.metadata.name, group.role, number) for group in groups(job.spec)):
            found = self._caches.jobs.get(Key(job.metadata.namespace, name))
            owner = found.metadata.controller if found is not None else None
            if owner is None or owner.uid == job.metadata.uid:
                continue
            if (owner.kind, owner.name) == (self.resource.kind, job.metadata.name):
                before = IndexKey(job.metadata.namespace, owner.uid)
                pods = (pod for pod in self._caches.pods.by("training", before) if not pod.is_over)
                return Predecessor(name, tuple(sorted(pod.metadata.name for pod in pods)))
        return None

    async def _looked_closer(self, snapshot: Snapshot, number: int) -> Snapshot:
        """Read missing parts of the attempt from the API server: an attempt must not end because a cache lags."""
        is_new = attempts.recorded(snapshot.object.status, number) is None
        snapshot = await self._with_gang(snapshot, begins=is_new)
        if not is_new:
            snapshot = await self._searched(snapshot, number)
        run = snapshot.run(number)
        if failure.ended_badly(snapshot.object.spec, run) is not None:
            return await self._with_evidence(snapshot, number)
        begun = attempts.recorded(snapshot.object.status, number)
        if completion.has_succeeded(snapshot.object.spec, run) and (begun is None or begun.run_time is None):
            return await self._with_all_pods(snapshot)
        if termination.outdated(snapshot.object.spec, run) is not None and not snapshot.object.spec.suspend:
            snapshot = await self._tried(snapshot, number + 1)
        if completion.missing(snapshot.object.spec, run) and _has_waited(snapshot, run.jobs):
            snapshot = msgspec.structs.replace(snapshot, complaint=await self._complaint(run.jobs))
        stuck = pod_pending.stuck(run.pods, snapshot.now)
        return snapshot if stuck is None else msgspec.structs.replace(snapshot, obstacle=await self._obstacle(stuck))

    async def _with_evidence(self, snapshot: Snapshot, number: int) -> Snapshot:
        if not self._is_settled(snapshot.object.metadata.identity):
            return msgspec.structs.replace(snapshot, is_settled=False)
        snapshot = await self._with_all_pods(snapshot)
        mishap = failure.ended_badly(snapshot.object.spec, snapshot.run(number))
        log = None if mishap is None else await self._log(mishap.pod)
        return msgspec.structs.replace(snapshot, log=log)

    async def _with_all_pods(self, snapshot: Snapshot) -> Snapshot:
        """Read the pods from the API server before a final decision: the Job may be cached before its pods.

        Pods that are deleted by now are kept as evidence.
        """
        pods = (await self._list(POD, snapshot.object, _List[Pod])).items
        there = {pod.metadata.uid for pod in pods}
        gone = tuple(pod for pod in snapshot.pods if pod.metadata.uid not in there)
        return msgspec.structs.replace(snapshot, pods=(*pods, *gone))

    async def _searched(self, snapshot: Snapshot, number: int) -> Snapshot:
        job = snapshot.object
        names = {naming.job(job.metadata.name, group.role, number) for group in groups(job.spec)}
        missing = names - {each.metadata.name for each in snapshot.jobs}
        if not missing:
            return snapshot
        found = [await self._find(job, name) for name in sorted(missing)]
        there = tuple(each for each in found if each is not None)
        return msgspec.structs.replace(
            snapshot,
            jobs=(*snapshot.jobs, *there),
            vanished=frozenset(missing - {each.metadata.name for each in there}),
        )

    async def _with_gang(self, snapshot: Snapshot, *, begins: bool) -> Snapshot:
        known = await self._gangs.closer(snapshot.object, snapshot.gang, begins=begins)
        return msgspec.structs.replace(snapshot, gang=known)

    async def _find(self, job: TrainingJob, name: str) -> Job | None:
        try:
            found = await self._client.get(JOB, job.metadata.namespace, name, Job)
        except NotFound:
            return None
        return found if found.metadata.is_controlled_by(job.metadata) else None

    async def _sure_to_begin(self, snapshot: Snapshot) -> Snapshot:
        """Confirm with the API server that the job is unchanged and that nothing of the last attempt is left.

        A lagging cache would start an attempt again that has already ended, beside the running one.
        """
        job = snapshot.object
        if not self._is_settled(job.metadata.identity):
            return msgspec.structs.replace(snapshot, is_settled=False)
        live = await self._client.get(self.resource, job.metadata.namespace, job.metadata.name, Object)
        if live.metadata.resource_version != job.metadata.resource_version:
            raise Stale(f"TrainingJob {job.metadata.key} changed, and the cache is older than that")
        snapshot = await self._with_gang(snapshot, begins=True)
        snapshot = msgspec.structs.replace(snapshot, has_lost_checkpoint=await self._has_lost_checkpoint(job))
        if preflight.is_due(job):
            snapshot = await self._tried(snapshot, attempts.following(job.status))
        if not job.status.attempts:
            return snapshot
        jobs = await self._list(JOB, job, _List[Job])
        pods = await self._list(POD, job, _List[Pod])
        return msgspec.structs.replace(snapshot, jobs=jobs.items, pods=pods.items)

    async def _has_lost_checkpoint(self, job: TrainingJob) -> bool:
        """Return whether the PVC of the newest checkpoint was deleted. A new PVC of the same name is empty."""
        checkpoint = job.status.checkpoint
        if checkpoint is None or not volumes.finds(job, checkpoint):
            return False
        name = volumes.checkpoint_claim_name(job)
        try:
            claim = await self._client.get(PERSISTENT_VOLUME_CLAIM, job.metadata.namespace, name, Object)
        except NotFound:
            claim = None
        return volumes.has_lost(claim, checkpoint)

    async def _tried(self, snapshot: Snapshot, number: int) -> Snapshot:
        """Run the preflight of the current spec, unless it has validation errors."""
        if objections(snapshot.object):
            return snapshot
        refusal = await preflight.refusal(self._client, snapshot.object, number, snapshot.terms.reporting)
        return msgspec.structs.replace(snapshot, refusal=refusal)

    async def _list(self, resource: Resource, job: TrainingJob, type_: type[_List[T]]) -> _List[T]:
        query = {"labelSelector": f"{Label.TRAINING_JOB_UID}={job.metadata.uid}"}
        return decoded(await self._client.list_page(resource, job.metadata.namespace, query), type_)

    async def _log(self, pod: Pod | None) -> str | None:
        """Read the log once: a node that does not answer must not delay the next attempt."""
        if pod is None or pod.exit is None:
            return None
        return await self._evidence.log(pod.metadata.key, pod.exit[0], lines=_LOG_LINES)

    async def _complaint(self, jobs: tuple[Job, ...]) -> str | None:
        """Return the last event of the Job controller about pods that it cannot create."""
        for job in jobs:
            told = await self._evidence.complaint(job)
            if told is not None:
                return told
        return None

    async def _obstacle(self, pod: Pod) -> Obstacle | None:
        newest = await self._evidence.newest(pod)
        return None if newest is None else Obstacle(pod.metadata.name, newest.reason, newest.note)


def _has_waited(snapshot: Snapshot, jobs: tuple[Job, ...]) -> bool:
    """Return whether the Job controller has had enough time since it first saw the Jobs: under load it needs longer."""
    begun = [attempts.moment(job.status.start_time) for job in jobs if job.status.start_time]
    return bool(begun) and snapshot.now - max(begun) >= _PATIENCE
