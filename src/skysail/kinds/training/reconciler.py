"""Reconciler of TrainingJobs: caches of their children, and live reads where a cache is not enough."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TypeVar

import msgspec

from skysail.base.names import Label
from skysail.claims.types import CloudInstance
from skysail.cloud.checkpoint_volumes import VolumeDeletion
from skysail.core import pod_pending
from skysail.core.actions import Event, Plan
from skysail.core.live_reads import check_current, find_child, list_labelled, newest_versions
from skysail.core.pod_pending import PodEvent
from skysail.kinds.training import preflight, scheduling
from skysail.kinds.training.admission.validation import validate
from skysail.kinds.training.api.training_job import TRAINING_JOB, TrainingJob
from skysail.kinds.training.caches import Caches
from skysail.kinds.training.children import naming, volumes
from skysail.kinds.training.children.progress_endpoint import TrainingConfig
from skysail.kinds.training.children.replica_groups import replica_groups
from skysail.kinds.training.objects import Job, Pod
from skysail.kinds.training.plan import attempts, completion, failure, planner, retention, termination
from skysail.kinds.training.scheduling.observer import GangObserver, IsServed, serves_nothing
from skysail.kinds.training.snapshot import NameHolder, Snapshot
from skysail.kube import diagnostics
from skysail.kube.api.objects import IndexKey, Key, Object
from skysail.kube.api.rbac import PolicyRule, read_rule
from skysail.kube.api.resources import CONFIG_MAP, JOB, PERSISTENT_VOLUME_CLAIM, POD, SERVICE, Resource
from skysail.kube.client.client import Client
from skysail.kube.diagnostics import PodDiagnostics

POLICY_RULES = (
    read_rule(TRAINING_JOB.resource),
    # `patch` is for finalizers, also those of a replaced operator; `delete` is for the TTL.
    PolicyRule(TRAINING_JOB.resource, ("delete", "patch")),
    PolicyRule(TRAINING_JOB.resource, ("update",), subresource="status"),
    # OwnerReferencesPermissionEnforcement requires this right to set blockOwnerDeletion.
    PolicyRule(TRAINING_JOB.resource, ("update",), subresource="finalizers"),
    read_rule(JOB),
    PolicyRule(JOB, ("create", "delete", "patch")),
    read_rule(SERVICE),
    PolicyRule(SERVICE, ("create", "delete", "patch")),
    PolicyRule(CONFIG_MAP, ("create", "get", "patch")),
    PolicyRule(PERSISTENT_VOLUME_CLAIM, ("create", "get", "patch")),
    read_rule(POD),
    # `delete` is for pods whose Job was deleted without them.
    PolicyRule(POD, ("delete",)),
    *diagnostics.POLICY_RULES,
    *(right for gang in scheduling.SCHEDULERS.values() for right in gang.rights),
)

# Launchers such as torchrun print a page of their own after the error of the program.
_LOG_LINES = 100
# The Job controller creates pods at once; if pods are missing after this time, something blocks it.
_GRACE = timedelta(seconds=10)

T = TypeVar("T", bound=Object)


def _nothing_to_read(_: IndexKey) -> bool:
    """Return True: without a log watcher nothing is left to read."""
    return True


def _no_claims(_: str) -> tuple[CloudInstance, ...]:
    """Return no claims: without clouds there are none."""
    return ()


def _no_deletions(_: str) -> Mapping[str, VolumeDeletion | None]:
    """Return no deletions: without clouds there are no volumes."""
    return {}


class TrainingJobReconciler:
    """Reconciler of TrainingJobs. `is_settled`: whether all checkpoints printed by finished pods are recorded.

    `claims`: the claims of a pod at a cloud, by its UID. `volume_deletions`: the deletions of a job's volumes, by the
    UID of the job.
    """

    resource = TRAINING_JOB.resource

    def __init__(
        self,
        client: Client,
        caches: Caches,
        now: Callable[[], datetime],
        *,
        config: Callable[[], TrainingConfig] = TrainingConfig,
        serves: IsServed = serves_nothing,
        is_settled: Callable[[IndexKey], bool] = _nothing_to_read,
    ) -> None:
        self._client = client
        self._diagnostics = PodDiagnostics(client)
        self._caches = caches
        self._now = now
        self._started_at = now()
        self._config = config
        self._gangs = GangObserver(client, caches.gangs, serves)
        self._is_settled = is_settled
        self.claims: Callable[[str], Iterable[CloudInstance]] = _no_claims
        self.volume_deletions: Callable[[str], Mapping[str, VolumeDeletion | None]] = _no_deletions

    async def observe(self, key: Key) -> Snapshot | None:
        job = self._caches.training.get(key)
        return None if job is None else await self._observe(job, self._cached(job))

    def _cached(self, job: TrainingJob) -> Snapshot:
        identity = job.metadata.identity
        return Snapshot(
            object=job,
            now=self._now(),
            jobs=tuple(self._caches.jobs.by("owner", identity)),
            pods=tuple(self._caches.pods.by("training", identity)),
            services=tuple(self._caches.services.by("owner", identity)),
            gang=self._gangs.cached(job),
            config=self._config(),
            volume_deletions=self.volume_deletions(job.metadata.uid),
            started_at=self._started_at,
        )

    async def _observe(self, job: TrainingJob, snapshot: Snapshot) -> Snapshot:
        """Add to the caches what only the API server knows for sure, as far as the plan depends on it."""
        if job.metadata.is_deleting or job.spec.managed_by is not None:
            return snapshot
        if retention.is_due(job):
            snapshot = msgspec.structs.replace(snapshot, checkpoint_pvc=await self._checkpoint_pvc(job))
        if job.status.phase in planner.FINISHED_PHASES:
            return snapshot
        number = attempts.active_number(snapshot)
        if number is not None:
            return await self._with_live_children(self._with_claims(snapshot, number), number)
        if not planner.can_start_attempt(snapshot):
            return snapshot
        previous = self._predecessor(job)
        if previous is not None:
            return msgspec.structs.replace(snapshot, name_held_by=previous)
        return await self._with_live_state(snapshot)

    def plan(self, snapshot: Snapshot) -> Plan:
        return planner.plan(snapshot)

    def on_rejected(self, snapshot: Snapshot, event: Event) -> Plan:
        return planner.refused(snapshot, event)

    def _predecessor(self, job: TrainingJob) -> NameHolder | None:
        """Return the Job of a deleted TrainingJob of the same name that still occupies a name of the next attempt."""
        number = attempts.next_number(job.status)
        for name in (
            naming.job(job.metadata.name, replica_group.role, number) for replica_group in replica_groups(job.spec)
        ):
            found = self._caches.jobs.get(Key(job.metadata.namespace, name))
            owner = found.metadata.controller if found is not None else None
            if owner is None or owner.uid == job.metadata.uid:
                continue
            if (owner.kind, owner.name) == (self.resource.kind, job.metadata.name):
                previous = IndexKey(job.metadata.namespace, owner.uid)
                pods = (pod for pod in self._caches.pods.by("training", previous) if not pod.is_finished)
                return NameHolder(name, tuple(sorted(pod.metadata.name for pod in pods)))
        return None

    def _with_claims(self, snapshot: Snapshot, number: int) -> Snapshot:
        """Add the claims of the attempt's pods, each once: the pods of a gang have one claim."""
        pods = snapshot.run(number).pods
        found = {claim.metadata.name: claim for pod in pods for claim in self.claims(pod.metadata.uid)}
        return msgspec.structs.replace(snapshot, claims=tuple(found[name] for name in sorted(found)))

    async def _with_live_children(self, snapshot: Snapshot, number: int) -> Snapshot:
        """Read missing parts of the attempt from the API server: an attempt must not end because a cache lags."""
        is_new = attempts.find(snapshot.object.status, number) is None
        snapshot = await self._with_gang(snapshot, begins=is_new)
        if not is_new:
            snapshot = await self._with_missing_jobs(snapshot, number)
        attempt = snapshot.run(number)
        if failure.find_failure(snapshot.object.spec, attempt) is not None:
            return await self._with_failure_log(snapshot, number)
        begun = attempts.find(snapshot.object.status, number)
        if completion.has_succeeded(snapshot.object.spec, attempt) and (begun is None or begun.run_time is None):
            return await self._with_all_pods(snapshot)
        if termination.outdated_job(snapshot.object.spec, attempt) is not None and not snapshot.object.spec.suspend:
            snapshot = await self._with_preflight(snapshot, number + 1)
        if completion.missing_ranks(snapshot.object.spec, attempt) and _has_waited(snapshot, attempt.jobs):
            snapshot = msgspec.structs.replace(snapshot, create_failure=await self._create_failure(attempt.jobs))
        stuck = pod_pending.first_stuck_pod(attempt.pods, snapshot.now)
        return snapshot if stuck is None else msgspec.structs.replace(snapshot, pod_event=await self._pod_event(stuck))

    async def _with_failure_log(self, snapshot: Snapshot, number: int) -> Snapshot:
        if not self._is_settled(snapshot.object.metadata.identity):
            return msgspec.structs.replace(snapshot, progress_flushed=False)
        snapshot = await self._with_all_pods(snapshot)
        failed = failure.find_failure(snapshot.object.spec, snapshot.run(number))
        log = None if failed is None else await self._log(failed.pod)
        return msgspec.structs.replace(snapshot, log=log)

    async def _with_all_pods(self, snapshot: Snapshot) -> Snapshot:
        """Read the pods from the API server before a final decision: the Job may be cached before its pods.

        Pods that are deleted by now are kept as evidence.
        """
        pods = await self._list(POD, snapshot.object, Pod)
        return msgspec.structs.replace(snapshot, pods=newest_versions((*snapshot.pods, *pods)))

    async def _with_missing_jobs(self, snapshot: Snapshot, number: int) -> Snapshot:
        job = snapshot.object
        names = {
            naming.job(job.metadata.name, replica_group.role, number) for replica_group in replica_groups(job.spec)
        }
        missing = names - {each.metadata.name for each in snapshot.jobs}
        if not missing:
            return snapshot
        found = [await find_child(self._client, JOB, job, name, Job) for name in sorted(missing)]
        jobs = tuple(each for each in found if each is not None)
        return msgspec.structs.replace(
            snapshot,
            jobs=(*snapshot.jobs, *jobs),
            missing_jobs=frozenset(missing - {each.metadata.name for each in jobs}),
        )

    async def _with_gang(self, snapshot: Snapshot, *, begins: bool) -> Snapshot:
        gang_state = await self._gangs.live(snapshot.object, snapshot.gang, begins=begins)
        return msgspec.structs.replace(snapshot, gang=gang_state)

    async def _with_live_state(self, snapshot: Snapshot) -> Snapshot:
        """Confirm with the API server that the job is unchanged and that nothing of the last attempt is left.

        A lagging cache would start an attempt again that has already ended, beside the running one.
        """
        job = snapshot.object
        if not self._is_settled(job.metadata.identity):
            return msgspec.structs.replace(snapshot, progress_flushed=False)
        await check_current(self._client, self.resource, job)
        snapshot = await self._with_gang(snapshot, begins=True)
        snapshot = msgspec.structs.replace(snapshot, has_lost_checkpoint=await self._has_lost_checkpoint(job))
        if preflight.is_needed(job):
            snapshot = await self._with_preflight(snapshot, attempts.next_number(job.status))
        if not job.status.attempts:
            return await self._with_checkpoint_pvc(snapshot)
        jobs, pods = await self._list(JOB, job, Job), await self._list(POD, job, Pod)
        return msgspec.structs.replace(snapshot, jobs=jobs, pods=pods)

    async def _has_lost_checkpoint(self, job: TrainingJob) -> bool:
        """Return whether the PVC of the newest checkpoint was deleted. A new PVC of the same name is empty."""
        checkpoint = job.status.checkpoint
        if checkpoint is None or checkpoint.provider or not volumes.is_reachable(job, checkpoint):
            return False
        return volumes.is_lost(await self._checkpoint_pvc(job), checkpoint)

    async def _with_checkpoint_pvc(self, snapshot: Snapshot) -> Snapshot:
        """Add the PVC for checkpoints before the first attempt: an earlier job of the same name may have left it."""
        if not volumes.checkpoint_directory(snapshot.object.spec):
            return snapshot
        return msgspec.structs.replace(snapshot, checkpoint_pvc=await self._checkpoint_pvc(snapshot.object))

    async def _checkpoint_pvc(self, job: TrainingJob) -> Object | None:
        name = volumes.checkpoint_claim_name(job)
        return await self._client.find(PERSISTENT_VOLUME_CLAIM, job.metadata.namespace, name, Object)

    async def _with_preflight(self, snapshot: Snapshot, number: int) -> Snapshot:
        """Run the preflight of the current spec, unless it has validation errors."""
        if validate(snapshot.object):
            return snapshot
        refusal = await preflight.check(self._client, snapshot.object, number, snapshot.config.reporting)
        return msgspec.structs.replace(snapshot, preflight_error=refusal)

    async def _list(self, resource: Resource, job: TrainingJob, type_: type[T]) -> tuple[T, ...]:
        return await list_labelled(self._client, resource, job, Label.TRAINING_JOB_UID, type_)

    async def _log(self, pod: Pod | None) -> str | None:
        """Read the log once: a node that does not answer must not delay the next attempt."""
        if pod is None or pod.termination is None:
            return None
        return await self._diagnostics.log_tail(pod.metadata.key, pod.termination[0], lines=_LOG_LINES)

    async def _create_failure(self, jobs: tuple[Job, ...]) -> str | None:
        """Return the last event of the Job controller about pods that it cannot create."""
        for job in jobs:
            message = await self._diagnostics.last_create_failure(job)
            if message is not None:
                return message
        return None

    async def _pod_event(self, pod: Pod) -> PodEvent | None:
        newest = await self._diagnostics.latest_event(pod)
        return None if newest is None else PodEvent(pod.metadata.name, newest.reason, newest.note)


def _has_waited(snapshot: Snapshot, jobs: tuple[Job, ...]) -> bool:
    """Return whether the Job controller has had enough time since it first saw the Jobs: under load it needs longer."""
    begun = [attempts.parse_time(job.status.start_time) for job in jobs if job.status.start_time]
    return bool(begun) and snapshot.now - max(begun) >= _GRACE
