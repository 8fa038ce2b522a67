"""What a plan has to do at the gang scheduler's, and whether an attempt may begin. Pure."""

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
    """What to do first; and what the attempt waits for, as a reason and a sentence. Without a reason it may begin."""

    actions: tuple[Action, ...] = ()
    reason: Reason | None = None
    message: str = ""


def leave(snapshot: Snapshot) -> Leave:
    """Whether the next attempt may begin. Nothing of the last one is left."""
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
        return Leave(actions, Reason.NOT_ADMITTED, f"The job is being handed to {gang.name}.")
    actions = (*spare, *released(snapshot))
    why = gang.waits(found, snapshot.gang.facts)
    return Leave(actions) if why is None else Leave(actions, Reason.NOT_ADMITTED, why)


def is_unknown(snapshot: Snapshot) -> bool:
    """Whether it is not known yet if the gang scheduler is there at all."""
    return scheduling.of(snapshot.object.spec) is not None and snapshot.gang.is_served is None


def revoked(snapshot: Snapshot) -> str | None:
    """Why the pods of the attempt under way have to go, as a sentence. Without certainty they stay."""
    gang = scheduling.of(snapshot.object.spec)
    if gang is None or not snapshot.gang.is_served:
        return None
    found = snapshot.gang.object(gang.resource)
    return gang.revoked(found) if found is not None or snapshot.gang.is_gone else None


def placed(snapshot: Snapshot, job: Manifest, role: str) -> Manifest:
    """A Job, with what the scheduler wants to be said in its pods."""
    found = _found(snapshot)
    return job if found is None else found[0].placement(found[1], snapshot.gang.facts, role).on(job)


def upkeep(snapshot: Snapshot, *, all_run: bool) -> tuple[Action, ...]:
    """While an attempt goes on: tell whether its pods run, and replace a gang that somebody deleted."""
    found = _found(snapshot)
    if found is not None:
        told = found[0].ready(found[1], snapshot.now, all_run=all_run)
        return () if told is None else (told,)
    gang = scheduling.of(snapshot.object.spec)
    if gang is None or not (snapshot.gang.is_served and snapshot.gang.is_gone):
        return ()
    return _asked(snapshot, gang, None, manifest(gang, snapshot.object, snapshot.gang.facts))


def released(snapshot: Snapshot) -> tuple[Action, ...]:
    """Confirm to a scheduler that took the job's place back that no pod is left."""
    found = _found(snapshot)
    action = None if found is None else found[0].release(found[1], snapshot.now)
    return () if action is None else (action,)


def unwanted(snapshot: Snapshot) -> tuple[Action, ...]:
    """Gangs of a scheduler that the job does not ask for any more; all of them where it is held."""
    spec = snapshot.object.spec
    gang = None if spec.suspend else scheduling.of(spec)
    kept = None if gang is None else gang.resource
    there = ((of, each) for of, each in snapshot.gang.objects if not each.metadata.is_deleting)
    return tuple(Delete(of, each) for of, each in there if of != kept)


def over(snapshot: Snapshot) -> tuple[Action, ...]:
    """The job is over, and so is its gang when the last pod has ended."""
    found, phase = _found(snapshot), snapshot.object.status.phase
    if found is None or phase not in {"Succeeded", "Failed"} or any(not pod.is_over for pod in snapshot.pods):
        return ()
    ended = found[0].over(found[1], snapshot.now, "Succeeded" if phase == "Succeeded" else "Failed")
    return () if ended is None else (ended,)


def complaint(snapshot: Snapshot) -> str | None:
    """What the scheduler tells of pods that are there and do not run."""
    found = _found(snapshot)
    return None if found is None else found[0].complaint(found[1])


def _found(snapshot: Snapshot) -> tuple[Gang, Object] | None:
    gang = scheduling.of(snapshot.object.spec)
    found = None if gang is None else snapshot.gang.object(gang.resource)
    return None if gang is None or found is None else (gang, found)


def _asked(snapshot: Snapshot, gang: Gang, found: Object | None, wanted: Manifest) -> tuple[Action, ...]:
    """One that asks for something else goes first: a scheduler counts by what it was asked for."""
    if found is not None:
        return (Delete(gang.resource, found),)
    if snapshot.gang.is_ending(gang.resource):
        return ()
    return (Apply(gang.resource, wanted, Owner(TRAINING_JOB.resource, snapshot.object), only_once=True),)


def _unavailable(gang: Gang) -> str:
    resource = gang.resource
    return (
        f"The job asks for {gang.name}, but the cluster does not serve {resource.crd_name} in version "
        f"{resource.version}, so nothing is started. {gang.advice}, or set scheduling.gang to none."
    )
