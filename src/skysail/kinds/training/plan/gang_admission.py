"""Admission by the gang scheduler, and actions on its objects. Pure."""

from __future__ import annotations

import msgspec

from skysail.base.names import Reason
from skysail.core.actions import Action, Apply, Delete, Manifest, Owner
from skysail.kinds.training import scheduling
from skysail.kinds.training.api.training_job import TRAINING_JOB
from skysail.kinds.training.scheduling.gang_scheduler import GangScheduler, fits, manifest
from skysail.kinds.training.snapshot import Snapshot
from skysail.kube.api.objects import Object


class GangAdmission(msgspec.Struct, frozen=True):
    """Actions to execute first, and the pending reason of the attempt. Without a reason the attempt may start."""

    actions: tuple[Action, ...] = ()
    reason: Reason | None = None
    message: str = ""


def check(snapshot: Snapshot) -> GangAdmission:
    """Return whether the next attempt may start. Nothing of the last attempt is left."""
    scheduler = scheduling.for_spec(snapshot.object.spec)
    spare = delete_unwanted(snapshot)
    if scheduler is None:
        return GangAdmission(spare)
    if not snapshot.gang.is_served:
        return GangAdmission(spare, Reason.GANG_UNAVAILABLE, _unavailable(scheduler))
    desired = manifest(scheduler, snapshot.object, snapshot.gang.facts)
    found = snapshot.gang.object(scheduler.resource)
    if found is None or not fits(found, desired):
        actions = (*spare, *_asked(snapshot, scheduler, found, desired))
        return GangAdmission(actions, Reason.NOT_ADMITTED, f"The job is being submitted to {scheduler.name}.")
    actions = (*spare, *confirm_released(snapshot))
    message = scheduler.pending_reason(found, snapshot.gang.facts)
    return GangAdmission(actions) if message is None else GangAdmission(actions, Reason.NOT_ADMITTED, message)


def is_unknown(snapshot: Snapshot) -> bool:
    """Return whether discovery has not shown yet if the gang scheduler is installed."""
    return scheduling.for_spec(snapshot.object.spec) is not None and snapshot.gang.is_served is None


def revoked(snapshot: Snapshot) -> str | None:
    """Return why the gang scheduler takes back the admission of the current attempt, or None if it does not.

    Returns None without certainty, so that pods keep running.
    """
    scheduler = scheduling.for_spec(snapshot.object.spec)
    if scheduler is None or not snapshot.gang.is_served:
        return None
    found = snapshot.gang.object(scheduler.resource)
    return scheduler.eviction_reason(found) if found is not None or snapshot.gang.is_gone else None


def apply_placement(snapshot: Snapshot, job: Manifest, role: str) -> Manifest:
    """Return the Job with the labels, selectors and tolerations that the gang scheduler requires."""
    found = _found(snapshot)
    return job if found is None else found[0].placement(found[1], snapshot.gang.facts, role).on(job)


def upkeep(snapshot: Snapshot, *, all_run: bool) -> tuple[Action, ...]:
    """Return the actions for a running attempt: report whether its pods run, and recreate a deleted gang object."""
    found = _found(snapshot)
    if found is not None:
        action = found[0].report_ready(found[1], snapshot.now, all_run=all_run)
        return () if action is None else (action,)
    scheduler = scheduling.for_spec(snapshot.object.spec)
    if scheduler is None or not (snapshot.gang.is_served and snapshot.gang.is_gone):
        return ()
    return _asked(snapshot, scheduler, None, manifest(scheduler, snapshot.object, snapshot.gang.facts))


def confirm_released(snapshot: Snapshot) -> tuple[Action, ...]:
    """Return the action that confirms to the gang scheduler that no pod of an evicted job is left."""
    found = _found(snapshot)
    action = None if found is None else found[0].confirm_release(found[1], snapshot.now)
    return () if action is None else (action,)


def delete_unwanted(snapshot: Snapshot) -> tuple[Action, ...]:
    """Return the deletion of gang objects of another scheduler; of all of them if the job is suspended."""
    spec = snapshot.object.spec
    scheduler = None if spec.suspend else scheduling.for_spec(spec)
    kept = None if scheduler is None else scheduler.resource
    there = ((of, each) for of, each in snapshot.gang.objects if not each.metadata.is_deleting)
    return tuple(Delete(of, each) for of, each in there if of != kept)


def over(snapshot: Snapshot) -> tuple[Action, ...]:
    """Return the action that finishes the gang object of a finished job, after its last pod has ended."""
    found, phase = _found(snapshot), snapshot.object.status.phase
    if found is None or phase not in {"Succeeded", "Failed"} or any(not pod.is_finished for pod in snapshot.pods):
        return ()
    ended = found[0].finish(found[1], snapshot.now, "Succeeded" if phase == "Succeeded" else "Failed")
    return () if ended is None else (ended,)


def pods_pending_reason(snapshot: Snapshot) -> str | None:
    """Return the message of the gang scheduler about pods that exist and do not run."""
    found = _found(snapshot)
    return None if found is None else found[0].pods_pending_reason(found[1])


def _found(snapshot: Snapshot) -> tuple[GangScheduler, Object] | None:
    scheduler = scheduling.for_spec(snapshot.object.spec)
    found = None if scheduler is None else snapshot.gang.object(scheduler.resource)
    return None if scheduler is None or found is None else (scheduler, found)


def _asked(snapshot: Snapshot, scheduler: GangScheduler, found: Object | None, desired: Manifest) -> tuple[Action, ...]:
    """Delete a gang object with another spec before creating a new one: quota is counted by the first spec."""
    if found is not None:
        return (Delete(scheduler.resource, found),)
    if snapshot.gang.is_ending(scheduler.resource):
        return ()
    return (Apply(scheduler.resource, desired, Owner(TRAINING_JOB.resource, snapshot.object), only_if_absent=True),)


def _unavailable(scheduler: GangScheduler) -> str:
    resource = scheduler.resource
    return (
        f"{scheduler.name} is not available: the cluster does not serve {resource.crd_name} in version "
        f"{resource.version}. "
        f"Install a version of {scheduler.name} that serves it, or set scheduling.gang to none."
    )
