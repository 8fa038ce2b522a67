"""Volumes with checkpoints at clouds: whether they outlive their TrainingJob, and their deletion with it. Pure.

No garbage collector knows these volumes. So a TrainingJob whose `checkpoint.retain` deletes them has a finalizer from
before its first attempt on: its deletion waits until no pod uses the volumes and the clouds have deleted them.
"""

from __future__ import annotations

from datetime import timedelta

import msgspec

from skysail.base.names import Condition, EventReason, Finalizer
from skysail.core import finalizers
from skysail.core.actions import Delete, DeleteCloudVolume, Event, Plan, SetFinalizers
from skysail.core.conditions import find_condition, set_condition
from skysail.kinds.training.api.training_job import TRAINING_JOB, Checkpoint, TrainingJob, TrainingJobStatus
from skysail.kinds.training.children.volumes import has_cloud_volume
from skysail.kinds.training.objects import Job
from skysail.kinds.training.plan import attempts
from skysail.kinds.training.snapshot import Snapshot
from skysail.kube.api.resources import JOB

_FINISHED = frozenset({"Succeeded", "Failed"})
# Interval for polling pods that still use a volume, and before a failed deletion is repeated.
_RETRY = timedelta(seconds=10)
# The job does not wait longer for a pod that does not end or a cloud that does not answer.
_TIMEOUT = timedelta(minutes=10)
# A Job without pods that was deleted this long ago creates none, so its volume is free, even if a foreign child with
# `blockOwnerDeletion` keeps the Job.
_LATE = timedelta(minutes=1)
# On an object that is deleted with `--cascade=orphan`, until the garbage collector has released its children.
_ORPHAN = "orphan"


def settle(snapshot: Snapshot, plan: Plan) -> Plan:
    """Return the plan with the condition about volumes that stay. A change of the finalizer comes before the plan."""
    job = snapshot.object
    if job.metadata.is_deleting or job.spec.managed_by is not None:
        return plan
    change = _finalizer_change(snapshot)
    if change is not None:
        return Plan(actions=(change,), requeue_after=0.0)
    if not isinstance(plan.status, TrainingJobStatus):
        return plan
    status = _with_condition(snapshot, plan.status)
    return msgspec.structs.replace(plan, status=status, events=(*_events(job.status, status), *plan.events))


def record(snapshot: Snapshot, status: TrainingJobStatus) -> TrainingJobStatus:
    """Return the status with the clouds whose nodes pods of the job are bound to: each has a volume of the job."""
    if not has_cloud_volume(snapshot.object):
        return status
    nodes = {pod.spec.node_name for pod in snapshot.pods}
    clouds = {cloud for node, cloud in snapshot.config.cloud_nodes.items() if node in nodes}
    new = sorted(clouds - set(status.cloud_volumes))
    return msgspec.structs.replace(status, cloud_volumes=(*status.cloud_volumes, *new)) if new else status


def plan_deletion(snapshot: Snapshot) -> Plan:
    """Plan a job that is being deleted: end its pods, delete its volumes at clouds, then remove the finalizer."""
    job = snapshot.object
    if Finalizer.CLOUD_VOLUME not in job.metadata.finalizers:
        return Plan(actions=finalizers.remove_legacy_finalizers(TRAINING_JOB.resource, job))
    if _outlives(job):
        return _release(job)
    status = record(snapshot, job.status)
    has_pods = any(not pod.is_finished for pod in snapshot.pods)
    if _ORPHAN in job.metadata.finalizers or (has_pods and _are_pods_overdue(snapshot)):
        return _release(job, *(_retained(job, cloud, "Its pods still use it.") for cloud in status.cloud_volumes))
    if has_pods or not all(_is_late(each, snapshot) for each in snapshot.jobs):
        ends = tuple(Delete(JOB, each, foreground=True) for each in snapshot.jobs if not each.metadata.is_deleting)
        return Plan(actions=ends, status=status, requeue_after=_RETRY.total_seconds())
    return _delete_volumes(snapshot, status.cloud_volumes)


def _finalizer_change(snapshot: Snapshot) -> SetFinalizers | None:
    job = snapshot.object
    others, has = _without_ours(job), Finalizer.CLOUD_VOLUME in job.metadata.finalizers
    wants = _wants_finalizer(snapshot)
    if has == wants:
        return None
    return SetFinalizers(TRAINING_JOB.resource, job, (*others, Finalizer.CLOUD_VOLUME.value) if wants else others)


def _wants_finalizer(snapshot: Snapshot) -> bool:
    """Return whether a deletion of the job may have to delete a volume."""
    job, deletable = snapshot.object, _deletable(snapshot)
    if _retain(job) == "Always":
        return False
    if any(cloud in deletable for cloud in job.status.cloud_volumes):
        return True
    return bool(deletable) and job.status.phase not in _FINISHED and has_cloud_volume(job)


def _deletable(snapshot: Snapshot) -> frozenset[str]:
    """Return the clouds at which volumes of this job can be deleted, now or with the next account.

    A missing account adds no finalizer and removes none: the credentials may only be unreadable for a moment.
    """
    config, has = snapshot.config, Finalizer.CLOUD_VOLUME in snapshot.object.metadata.finalizers
    return config.deletable_volumes | config.missing_accounts if has else config.deletable_volumes


def _delete_volumes(snapshot: Snapshot, clouds: tuple[str, ...]) -> Plan:
    """Delete the volumes that are left. Remove the finalizer when each of them is deleted or has to stay."""
    job, deletions = snapshot.object, snapshot.volume_deletions
    unsettled = [cloud for cloud in clouds if not _is_settled(snapshot, cloud)]
    if unsettled:
        due = [cloud for cloud in unsettled if _is_due(snapshot, cloud)]
        actions = tuple(DeleteCloudVolume(cloud, TRAINING_JOB.resource, job) for cloud in due)
        return Plan(actions=actions, requeue_after=_RETRY.total_seconds())
    results = [(cloud, deletions[cloud]) for cloud in clouds]
    return _release(
        job,
        *(
            _retained(job, cloud, result.problem) if result is not None and result.problem else _deleted(job, cloud)
            for cloud, result in results
        ),
    )


def _is_settled(snapshot: Snapshot, cloud: str) -> bool:
    """Return whether the volume is deleted, or another attempt would be in vain."""
    result = snapshot.volume_deletions.get(cloud)
    if result is None:
        return False
    # Count from our first call: the operator may have been away since the job was deleted.
    return not result.problem or result.is_final or snapshot.now - result.first_at >= _TIMEOUT


def _is_due(snapshot: Snapshot, cloud: str) -> bool:
    """Return whether to call the cloud now: for the first time, or again after a failure."""
    if cloud not in snapshot.volume_deletions:
        return True
    result = snapshot.volume_deletions[cloud]
    return result is not None and snapshot.now - result.at >= _RETRY


def _is_late(job: Job, snapshot: Snapshot) -> bool:
    deleted = job.metadata.deletion_timestamp
    return deleted is not None and snapshot.now - attempts.parse_time(deleted) > _LATE


def _are_pods_overdue(snapshot: Snapshot) -> bool:
    """Return whether the end of the last pod is due for too long. Until each Job is being deleted, no end is due.

    Time before the start of this process does not count: pods at clouds do not end while no operator runs.
    """
    if any(not each.metadata.is_deleting for each in snapshot.jobs):
        return False
    objects = (snapshot.object, *snapshot.jobs, *(pod for pod in snapshot.pods if not pod.is_finished))
    due = (each.metadata.deletion_timestamp for each in objects if each.metadata.deletion_timestamp)
    return snapshot.now - max(snapshot.started_at, *map(attempts.parse_time, due)) >= _TIMEOUT


def _release(job: TrainingJob, *notes: Event) -> Plan:
    """Remove our finalizer, and those of replaced operators."""
    ours = msgspec.structs.replace(job.metadata, finalizers=_without_ours(job))
    legacy = finalizers.remove_legacy_finalizers(TRAINING_JOB.resource, msgspec.structs.replace(job, metadata=ours))
    rest = legacy[0].finalizers if legacy else ours.finalizers
    return Plan(actions=(SetFinalizers(TRAINING_JOB.resource, job, rest),), events=notes)


def _without_ours(job: TrainingJob) -> tuple[str, ...]:
    return tuple(name for name in job.metadata.finalizers if name != Finalizer.CLOUD_VOLUME)


def _outlives(job: TrainingJob) -> bool:
    """Return whether the volumes stay. As with a PVC, OnFailure keeps them only if a checkpoint was reported."""
    retain, status = _retain(job), job.status
    if retain == "OnFailure":
        return status.phase != "Succeeded" and status.checkpoint is not None
    return retain == "Always"


def _with_condition(snapshot: Snapshot, status: TrainingJobStatus) -> TrainingJobStatus:
    """Set `CloudVolumeRetained` while a cloud keeps a volume that the spec wants deleted. Otherwise remove it."""
    retain, deletable = _retain(snapshot.object), _deletable(snapshot)
    kept = [cloud for cloud in status.cloud_volumes if cloud not in deletable]
    if kept and retain != "Always":
        message = (
            f"spec.checkpoint.retain is {retain}, but Skysail cannot delete the volume with the checkpoints at "
            f"{' and '.join(kept)}: delete it there when you do not need it."
        )
        reason = Condition.CLOUD_VOLUME_RETAINED
        return set_condition(snapshot, status, Condition.CLOUD_VOLUME_RETAINED, "True", reason, message)
    rest = tuple(row for row in status.conditions if row.type != Condition.CLOUD_VOLUME_RETAINED)
    return status if rest == status.conditions else msgspec.structs.replace(status, conditions=rest)


def _events(before: TrainingJobStatus, after: TrainingJobStatus) -> tuple[Event, ...]:
    """Return the event about volumes that stay, when the condition is new."""
    old, new = (find_condition(each.conditions, Condition.CLOUD_VOLUME_RETAINED) for each in (before, after))
    if new is None or (old is not None and old.message == new.message):
        return ()
    return (Event(EventReason.CLOUD_VOLUME_RETAINED, new.message, warning=True),)


def _retained(job: TrainingJob, cloud: str, why: str) -> Event:
    message = (
        f"The volume with the checkpoints of TrainingJob {job.metadata.name} at {cloud} was not deleted: delete it "
        f"there yourself. {why}"
    )
    return Event(EventReason.CLOUD_VOLUME_RETAINED, message, warning=True)


def _deleted(job: TrainingJob, cloud: str) -> Event:
    message = f"The volume with the checkpoints of TrainingJob {job.metadata.name} at {cloud} was deleted with it."
    return Event(EventReason.CLOUD_VOLUME_DELETED, message)


def _retain(job: TrainingJob) -> str:
    return (job.spec.checkpoint or Checkpoint()).retain
