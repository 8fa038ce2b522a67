"""Status of a model: phase, conditions and message, in the terms of its kind. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from skysail.base.names import Condition as Type
from skysail.base.names import Reason
from skysail.base.timestamps import timestamp
from skysail.core import conditions
from skysail.core.actions import Note
from skysail.kinds.serving.api.types import MODEL_DEPLOYMENT, Download, Failure, MLModelStatus, ModelDeploymentStatus
from skysail.kinds.serving.objects import Claim
from skysail.kinds.serving.plan import pending
from skysail.kinds.serving.snapshot import Snapshot
from skysail.kinds.serving.spec.desired import Fixed
from skysail.kinds.serving.spec.revisions import Entry
from skysail.kube.api.fields import Condition

Status = ModelDeploymentStatus | MLModelStatus
Value = Literal["True", "False", "Unknown"]
Stage = Literal["Pending", "Storage", "Prepare", "Deploy", "Ready", "Failed"]

_LONGEST_MESSAGE = 4096
_ORDER = (
    Type.ACCEPTED,
    Type.MODEL_DOWNLOADED,
    Type.MODEL_VALIDATED,
    Type.PROGRESSING,
    Type.READY,
    Type.UPDATE_FAILED,
    Type.ROLLED_BACK,
)
_PHASES: Mapping[type[Status], Mapping[Stage, str]] = {
    ModelDeploymentStatus: {"Storage": "Validating", "Prepare": "Validating", "Deploy": "Deploying"},
    MLModelStatus: {"Storage": "CreatingStorage", "Prepare": "Downloading", "Deploy": "Serving"},
}


class Fact(msgspec.Struct, frozen=True):
    """Status, reason and message of a condition."""

    value: Value
    reason: str
    message: str


class View(msgspec.Struct, frozen=True, kw_only=True):
    """State of a model. `stage` becomes the phase while no server is ready; `message` is that of Progressing.

    `served` is the revision that all servers last ran, `candidate` the hash of a revision in preparation or rollout.
    `downloaded` is None if the target revision is unknown, `validated` is None if the revision has no script.
    """

    stage: Stage
    is_moving: bool
    reason: str
    message: str
    served: Entry | None = None
    candidate: str = ""
    downloaded: Fact | None = None
    validated: Fact | None = None
    failure: Failure | None = None
    download: Download | None = None
    update_failed: Fact | None = None
    rolled_back: Fact | None = None


def shown(snapshot: Snapshot, view: View) -> Status:
    """Return the complete status for a view."""
    status = told(snapshot, snapshot.object.status, Type.ACCEPTED, _accepted(snapshot))
    moving: Value = "True" if view.is_moving else "False"
    ready = _ready(snapshot, view)
    facts = {
        Type.MODEL_DOWNLOADED: view.downloaded,
        Type.MODEL_VALIDATED: view.validated or _unvalidated(status),
        Type.PROGRESSING: Fact(moving, view.reason, view.message),
        Type.READY: ready,
        Type.UPDATE_FAILED: view.update_failed or _undone(status, Type.UPDATE_FAILED, view.served),
        Type.ROLLED_BACK: view.rolled_back or _undone(status, Type.ROLLED_BACK),
    }
    for type_, fact in facts.items():
        status = told(snapshot, status, type_, fact)
    status = _counted(snapshot, status)
    answers = view.served is not None and (ready.value == "True" or ready.reason == Reason.SCALED_TO_ZERO)
    stage, message = _standing(view, ready, answers=answers)
    whole = msgspec.structs.replace(
        status,
        phase=_PHASES[type(status)].get(stage, stage),
        message=message[:_LONGEST_MESSAGE],
        candidate=view.candidate,
        failure=view.failure,
        download=view.download,
        **_of_served(snapshot, status, view.served),
    )
    return _worth_telling(snapshot.object.status, whole) if view.is_moving else whole


def unfit(snapshot: Snapshot, why: str) -> Status:
    """Return the status for an invalid spec. Nothing else changes, and the message names the fix."""
    status = told(snapshot, snapshot.object.status, Type.ACCEPTED, Fact("False", Reason.INVALID_SPEC, why))
    status = _counted(snapshot, status)
    if status.revision:
        return msgspec.structs.replace(status, message=why[:_LONGEST_MESSAGE])
    status = told(snapshot, status, Type.READY, Fact("False", Reason.INVALID_SPEC, why))
    return msgspec.structs.replace(status, phase="Failed", message=why[:_LONGEST_MESSAGE])


def _standing(view: View, ready: Fact, *, answers: bool) -> tuple[Stage, str]:
    """Return stage and message. A served revision that is briefly not ready has not failed with its successor."""
    if answers:
        return "Ready", ready.message if view.stage == "Ready" else view.message
    if _is_another_s(view):
        return "Deploy", f"{ready.message} {view.message}"
    return view.stage, view.message


def _is_another_s(view: View) -> bool:
    """Return whether the failed revision is not the served one."""
    found, served = view.failure, view.served
    return view.stage == "Failed" and found is not None and served is not None and found.revision != served.hash


def refused(snapshot: Snapshot, why: Note) -> Status:
    """Return the status after a rejected write. Nothing else changes, and the message gives the reason."""
    status, fact = snapshot.object.status, Fact("False", why.reason, why.message)
    is_served = bool(status.revision)
    for type_ in (Type.ACCEPTED, Type.PROGRESSING) if is_served else (Type.ACCEPTED, Type.PROGRESSING, Type.READY):
        status = told(snapshot, status, type_, fact)
    phase = status.phase if is_served else "Failed"
    return msgspec.structs.replace(status, phase=phase, message=why.message[:_LONGEST_MESSAGE])


def not_grown(snapshot: Snapshot, status: Status, claim: Claim, why: str) -> Status:
    """Return the status for a PVC that could not be expanded. Everything else continues."""
    message = (
        f"PVC {claim.metadata.name} cannot grow: {why.removesuffix('.')}. Set spec.storageSize back to {claim.size}, "
        "use a StorageClass with allowVolumeExpansion, or create the MLModel again under another name."
    )
    status = told(snapshot, status, Type.ACCEPTED, Fact("False", Reason.NOT_GROWN, message))
    return msgspec.structs.replace(status, message=message[:_LONGEST_MESSAGE])


def ending(snapshot: Snapshot) -> Status:
    """Return the status of a deleted model that a finalizer of another controller holds."""
    status = snapshot.object.status
    if not isinstance(status, MLModelStatus):
        return status
    generation = snapshot.object.metadata.generation
    return msgspec.structs.replace(status, phase="Terminating", observed_generation=generation)


def told(snapshot: Snapshot, status: Status, type_: Type, fact: Fact | None) -> Status:
    """Set a condition. Without a fact, only the observed generation changes."""
    generation = snapshot.object.metadata.generation
    status = msgspec.structs.replace(status, observed_generation=generation)
    if fact is None:
        return status
    new = Condition(
        type=type_,
        status=fact.value,
        last_transition_time=timestamp(snapshot.now),
        reason=fact.reason,
        message=fact.message[:_LONGEST_MESSAGE],
        observed_generation=generation,
    )
    rows = conditions.with_condition(status.conditions, new)
    return msgspec.structs.replace(status, conditions=tuple(sorted(rows, key=_place)))


def named(snapshot: Snapshot, entry: Entry) -> str:
    """Return the name of a revision in messages. Only a ModelDeployment has versions."""
    has_version = snapshot.serving.kind is MODEL_DEPLOYMENT
    return f"Revision {entry.number} (version {entry.want.version})" if has_version else f"Revision {entry.number}"


def again(snapshot: Snapshot, job: str = "") -> str:
    """Return how to retry a permanent failure: a new revision, or deleting Job `job`."""
    if snapshot.serving.rollback_to is not None:
        return "Name another revision in spec.rollbackTo or remove the field."
    if snapshot.serving.kind is MODEL_DEPLOYMENT:
        return "Fix the cause and set a new spec.version to retry."
    return f"Fix the spec or delete Job {job} to retry." if job else "Fix the spec to retry."


def _place(condition: Condition) -> int:
    """Return the position of a condition, in the order of a model's life."""
    return _ORDER.index(condition.type) if condition.type in _ORDER else len(_ORDER)


def _accepted(snapshot: Snapshot) -> Fact:
    return Fact("True", Reason.ACCEPTED, f"Skysail works on this {snapshot.serving.kind.resource.kind}.")


def _ready(snapshot: Snapshot, view: View) -> Fact:
    deployment = snapshot.deployment
    if view.served is None:
        return Fact("False", view.reason, view.message)
    if snapshot.serving.scale == Fixed(0):
        return Fact(
            "False", Reason.SCALED_TO_ZERO, "spec.replicas is 0, so no server runs: raise it to serve the model."
        )
    if deployment is not None and deployment.status.available_replicas:
        address, revision = snapshot.serving.address, named(snapshot, view.served)
        return Fact("True", Reason.SERVED, f"{revision} answers at {address}." if address else f"{revision} answers.")
    if view.stage == "Failed" and not _is_another_s(view):
        return Fact("False", view.reason, view.message)
    wait = pending.for_servers(snapshot, view.served)
    return Fact("False", wait.reason, wait.message)


def _unvalidated(status: Status) -> Fact | None:
    """Reset ModelValidated for a revision without a script, if an earlier revision had set it."""
    if conditions.find(status.conditions, Type.MODEL_VALIDATED) is None:
        return None
    return Fact("Unknown", Reason.NO_SCRIPT, "This revision has no validation script.")


def _undone(status: Status, type_: Type, served: Entry | None = None) -> Fact | None:
    """Clear the condition. If it was never set and no revision is `served`, do not add it."""
    if served is None and conditions.find(status.conditions, type_) is None:
        return None
    return Fact("False", Reason.UPDATED, "The desired revision is served or being rolled out.")


def _counted(snapshot: Snapshot, status: Status) -> Status:
    """Set the replica counts from the pods, which change before the Deployment's status does."""
    servers = [pod for pod in snapshot.pods if pod.serves]
    return msgspec.structs.replace(
        status, replicas=len(servers), ready_replicas=sum(1 for pod in servers if pod.is_ready)
    )


def _worth_telling(before: Status, now: Status) -> Status:
    """During a rollout, do not write the status only because `replicas` changed."""
    return before if msgspec.structs.replace(now, replicas=before.replicas) == before else now


def _of_served(snapshot: Snapshot, status: Status, entry: Entry | None) -> dict[str, Any]:
    """Return the status fields of the served revision and its address."""
    address = snapshot.serving.address if entry is not None else ""
    known: dict[str, Any] = {
        "revision": entry.number if entry is not None else 0,
        "digest": entry.digest if entry is not None else "",
    }
    if isinstance(status, ModelDeploymentStatus):
        return {**known, "version": entry.want.version if entry is not None else "", "url": address}
    return {**known, "service_endpoint": address}
