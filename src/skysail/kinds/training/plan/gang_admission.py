"""Admission by the gang scheduler, and actions on its objects. Pure."""

from __future__ import annotations

import msgspec

from skysail.base.names import Reason
from skysail.core.actions import Action, Apply, Delete, Manifest, Owner
from skysail.kinds.training import scheduling
from skysail.kinds.training.api.training_job import TRAINING_JOB
from skysail.kinds.training.scheduling.gang_scheduler import Gang, fits, manifest
from skysail.kinds.training.snapshot import Snapshot
from skysail.kube.api.objects import Object


class Leave(msgspec.Struct, frozen=True):
    """Actions to execute first, and the pending reason of the attempt. Without a reason the attempt may start."""

    actions: tuple[Action, ...] = ()
    reason: Reason | None = None
    message: str = ""


def leave(snapshot: Snapshot) -> Leave:
    """Return whether the next attempt may start. Nothing of the last attempt is left."""
    gang = scheduling.of(snapshot.object.spec)
    spare = unwanted(snapshot)
    if gang is None:
        return Leave(spare)
    if not snapshot.gang.is_served:
        return Leave(spare, Reason.GANG_UNAVAILABLE, _unavailable(gang))
    wanted = manifest(gang, snapshot.object, snapshot.gang.facts)
    found = snapshot.gang.object(gang.resource)
    if found is None or not fits(found, wanted):
        actions = (*spare, *_asked(snapshot, gang, found, wanted))
        return Leave(actions, Reason.NOT_ADMITTED, f"The job is being submitted to {gang.name}.")
    actions = (*spare, *released(snapshot))
    why = gang.waits(found, snapshot.gang.facts)
    return Leave(actions) if why is None else Leave(actions, Reason.NOT_ADMITTED, why)


def is_unknown(snapshot: Snapshot) -> bool:
    """Return whether discovery has not shown yet if the gang scheduler is installed."""
    return scheduling.of(snapshot.object.spec) is not None and snapshot.gang.is_served is None


def revoked(snapshot: Snapshot) -> str | None:
    """Return why the gang scheduler takes back the admission of the current attempt, or None if it does not.

    Returns None without certainty, so that pods keep running.
    """
    gang = scheduling.of(snapshot.object.spec)
    if gang is None or not snapshot.gang.is_served:
        return None
    found = snapshot.gang.object(gang.resource)
    return gang.revoked(found) if found is not None or snapshot.gang.is_gone else None


def placed(snapshot: Snapshot, job: Manifest, role: str) -> Manifest:
    """Return the Job with the labels, selectors and tolerations that the gang scheduler requires."""
    found = _found(snapshot)
    return job if found is None else found[0].placement(found[1], snapshot.gang.facts, role).on(job)


def upkeep(snapshot: Snapshot, *, all_run: bool) -> tuple[Action, ...]:
    """Return the actions for a running attempt: report whether its pods run, and recreate a deleted gang object."""
    found = _found(snapshot)
    if found is not None:
        told = found[0].ready(found[1], snapshot.now, all_run=all_run)
        return () if told is None else (told,)
    gang = scheduling.of(snapshot.object.spec)
    if gang is None or not (snapshot.gang.is_served and snapshot.gang.is_gone):
        return ()
    return _asked(snapshot, gang, None, manifest(gang, snapshot.object, snapshot.gang.facts))


def released(snapshot: Snapshot) -> tuple[Action, ...]:
    """Return the action that confirms to the gang scheduler that no pod of an evicted job is left."""
    found = _found(snapshot)
    action = None if found is None else found[0].release(found[1], snapshot.now)
    return () if action is None else (action,)


def unwanted(snapshot: Snapshot) -> tuple[Action, ...]:
    """Return the deletion of gang objects of another scheduler; of all of them if the job is suspended."""
    spec = snapshot.object.spec
    gang = None if spec.suspend else scheduling.of(spec)
    kept = None if gang is None else gang.resource
    there = ((of, each) for of, each in snapshot.gang.objects if not each.metadata.is_deleting)
    return tuple(Delete(of, each) for of, each in there if of != kept)


def over(snapshot: Snapshot) -> tuple[Action, ...]:
    """Return the action that finishes the gang object of a finished job, after its last pod has ended."""
    found, phase = _found(snapshot), snapshot.object.status.phase
    if found is None or phase not in {"Succeeded", "Failed"} or any(not pod.is_over for pod in snapshot.pods):
        return ()
    ended = found[0].over(found[1], snapshot.now, "Succeeded" if phase == "Succeeded" else "Failed")
    return () if ended is None else (ended,)


def complaint(snapshot: Snapshot) -> str | None:
    """Return the message of the gang scheduler about pods that exist and do not run."""
    found = _found(snapshot)
    return None if found is None else found[0].complaint(found[1])


def _found(snapshot: Snapshot) -> tuple[Gang, Object] | None:
    gang = scheduling.of(snapshot.object.spec)
    found = None if gang is None else snapshot.gang.object(gang.resource)
    return None if gang is None or found is None else (gang, found)


def _asked(snapshot: Snapshot, gang: Gang, found: Object | None, wanted: Manifest) -> tuple[Action, ...]:
    """Delete a gang object with another spec before creating a new one: quota is counted by the first spec."""
    if found is not None:
        return (Delete(gang.resource, found),)
    if snapshot.gang.is_ending(gang.resource):
        return ()
    return (Apply(gang.resource, wanted, Owner(TRAINING_JOB.resource, snapshot.object), only_once=True),)


def _unavailable(gang: Gang) -> str:
    resource = gang.resource
    return (
        f"{gang.name} is not available: the cluster does not serve {resource.crd_name} in version {resource.version}. "
        f"Install a version of {gang.name} that serves it, or set scheduling.gang to none."
    )
