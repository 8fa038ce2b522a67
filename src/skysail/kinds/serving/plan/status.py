"""Status of a model: phase, conditions and message, in the terms of its kind. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from skysail.base.names import Condition as Type
from skysail.base.names import Reason
from skysail.core import conditions
from skysail.core.actions import Event
from skysail.core.conditions import MAX_MESSAGE_LENGTH, Value
from skysail.kinds.serving.api.types import MODEL_DEPLOYMENT, Download, Failure, MLModelStatus, ModelDeploymentStatus
from skysail.kinds.serving.children import labels
from skysail.kinds.serving.objects import PersistentVolumeClaim
from skysail.kinds.serving.plan import pending
from skysail.kinds.serving.snapshot import Snapshot
from skysail.kinds.serving.spec.desired import FixedScale
from skysail.kinds.serving.spec.revisions import Revision
from skysail.kube.api.fields import Condition

Status = ModelDeploymentStatus | MLModelStatus
Stage = Literal["Pending", "Storage", "Prepare", "Deploy", "Ready", "Failed"]

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


class ConditionValue(msgspec.Struct, frozen=True):
    """Status, reason and message of a condition."""

    value: Value
    reason: str
    message: str


class ModelState(msgspec.Struct, frozen=True, kw_only=True):
    """State of a model. `stage` becomes the phase while no server is ready; `message` is that of Progressing.

    `served` is the revision that all servers last ran, `candidate` the hash of a revision in preparation or rollout.
    `downloaded` is None if the target revision is unknown, `validated` is None if the revision has no script.
    """

    stage: Stage
    is_moving: bool
    reason: str
    message: str
    served: Revision | None = None
    candidate: str = ""
    downloaded: ConditionValue | None = None
    validated: ConditionValue | None = None
    failure: Failure | None = None
    download: Download | None = None
    update_failed: ConditionValue | None = None
    rolled_back: ConditionValue | None = None


def build(snapshot: Snapshot, state: ModelState) -> Status:
    """Return the complete status for a view."""
    status = set_condition(snapshot, snapshot.object.status, Type.ACCEPTED, _accepted(snapshot))
    moving: Value = "True" if state.is_moving else "False"
    ready = _ready(snapshot, state)
    condition_values = {
        Type.MODEL_DOWNLOADED: state.downloaded,
        Type.MODEL_VALIDATED: state.validated or _unvalidated(status),
        Type.PROGRESSING: ConditionValue(moving, state.reason, state.message),
        Type.READY: ready,
        Type.UPDATE_FAILED: state.update_failed or _undone(status, Type.UPDATE_FAILED, state.served),
        Type.ROLLED_BACK: state.rolled_back or _undone(status, Type.ROLLED_BACK),
    }
    for type_, condition_value in condition_values.items():
        status = set_condition(snapshot, status, type_, condition_value)
    status = _counted(snapshot, status)
    answers = state.served is not None and (ready.value == "True" or ready.reason == Reason.SCALED_TO_ZERO)
    stage, message = _standing(state, ready, answers=answers)
    whole = msgspec.structs.replace(
        status,
        phase=_PHASES[type(status)].get(stage, stage),
        message=message[:MAX_MESSAGE_LENGTH],
        candidate=state.candidate,
        failure=state.failure,
        download=state.download,
        **_of_served(snapshot, status, state.served),
    )
    return _worth_telling(snapshot.object.status, whole) if state.is_moving else whole


def invalid_spec(snapshot: Snapshot, message: str) -> Status:
    """Return the status for an invalid spec. Nothing else changes, and the message names the fix."""
    status = set_condition(
        snapshot, snapshot.object.status, Type.ACCEPTED, ConditionValue("False", Reason.INVALID_SPEC, message)
    )
    status = _counted(snapshot, status)
    if status.revision:
        return msgspec.structs.replace(status, message=message[:MAX_MESSAGE_LENGTH])
    status = set_condition(snapshot, status, Type.READY, ConditionValue("False", Reason.INVALID_SPEC, message))
    return msgspec.structs.replace(status, phase="Failed", message=message[:MAX_MESSAGE_LENGTH])


def _standing(state: ModelState, ready: ConditionValue, *, answers: bool) -> tuple[Stage, str]:
    """Return stage and message. A served revision that is briefly not ready has not failed with its successor."""
    if answers:
        return "Ready", ready.message if state.stage == "Ready" else state.message
    if _is_another_s(state):
        return "Deploy", f"{ready.message} {state.message}"
    return state.stage, state.message


def _is_another_s(state: ModelState) -> bool:
    """Return whether the failed revision is not the served one."""
    failure, served = state.failure, state.served
    return state.stage == "Failed" and failure is not None and served is not None and failure.revision != served.hash


def write_rejected(snapshot: Snapshot, event: Event) -> Status:
    """Return the status after a rejected write. Nothing else changes, and the message gives the reason."""
    status, condition_value = snapshot.object.status, ConditionValue("False", event.reason, event.message)
    is_served = bool(status.revision)
    for type_ in (Type.ACCEPTED, Type.PROGRESSING) if is_served else (Type.ACCEPTED, Type.PROGRESSING, Type.READY):
        status = set_condition(snapshot, status, type_, condition_value)
    phase = status.phase if is_served else "Failed"
    return msgspec.structs.replace(status, phase=phase, message=event.message[:MAX_MESSAGE_LENGTH])


def expansion_failed(snapshot: Snapshot, status: Status, pvc: PersistentVolumeClaim, reason: str) -> Status:
    """Return the status for a PVC that could not be expanded. Everything else continues."""
    message = (
        f"PVC {pvc.metadata.name} cannot grow: {reason.removesuffix('.')}. Set spec.storageSize back to {pvc.size}, "
        "use a StorageClass with allowVolumeExpansion, or create the MLModel again under another name."
    )
    status = set_condition(
        snapshot, status, Type.ACCEPTED, ConditionValue("False", Reason.VOLUME_EXPANSION_FAILED, message)
    )
    return msgspec.structs.replace(status, message=message[:MAX_MESSAGE_LENGTH])


def terminating(snapshot: Snapshot) -> Status:
    """Return the status of a deleted model that a finalizer of another controller holds."""
    status = snapshot.object.status
    if not isinstance(status, MLModelStatus):
        return status
    generation = snapshot.object.metadata.generation
    return msgspec.structs.replace(status, phase="Terminating", observed_generation=generation)


def set_condition(snapshot: Snapshot, status: Status, type_: Type, condition_value: ConditionValue | None) -> Status:
    """Set a condition, in the order of a model's life. Without a value, only the observed generation changes."""
    if condition_value is None:
        return msgspec.structs.replace(status, observed_generation=snapshot.object.metadata.generation)
    value, reason, message = condition_value.value, condition_value.reason, condition_value.message
    status = conditions.set_condition(snapshot, status, type_, value, reason, message)
    return msgspec.structs.replace(status, conditions=tuple(sorted(status.conditions, key=_place)))


def revision_name(snapshot: Snapshot, revision: Revision) -> str:
    """Return the name of a revision in messages. Only a ModelDeployment has versions."""
    has_version = snapshot.serving.kind is MODEL_DEPLOYMENT
    return (
        f"Revision {revision.number} (version {revision.want.version})"
        if has_version
        else f"Revision {revision.number}"
    )


def retry_hint(snapshot: Snapshot, job: str = "") -> str:
    """Return how to retry a permanent failure: a new revision, or deleting Job `job`."""
    if snapshot.serving.rollback_to is not None:
        return "Name another revision in spec.rollbackTo or remove the field."
    if snapshot.serving.kind is MODEL_DEPLOYMENT:
        return "A new spec.version retries it."
    return (
        f"A change of the spec or the deletion of Job {job} retries it." if job else "A change of the spec retries it."
    )


def _place(condition: Condition) -> int:
    """Return the position of a condition, in the order of a model's life."""
    return _ORDER.index(condition.type) if condition.type in _ORDER else len(_ORDER)


def _accepted(snapshot: Snapshot) -> ConditionValue:
    return ConditionValue("True", Reason.ACCEPTED, f"Skysail works on this {snapshot.serving.kind.resource.kind}.")


def _ready(snapshot: Snapshot, state: ModelState) -> ConditionValue:
    deployment = snapshot.deployment
    if state.served is None:
        return ConditionValue("False", state.reason, state.message)
    if snapshot.serving.scale == FixedScale(0):
        return ConditionValue(
            "False", Reason.SCALED_TO_ZERO, "spec.replicas is 0, so no server runs: raise it to serve the model."
        )
    if deployment is not None and deployment.status.available_replicas:
        address, revision = snapshot.serving.address, revision_name(snapshot, state.served)
        return ConditionValue(
            "True", Reason.SERVED, f"{revision} answers at {address}." if address else f"{revision} answers."
        )
    if state.stage == "Failed" and not _is_another_s(state):
        return ConditionValue("False", state.reason, state.message)
    pending_reason = pending.rollout_pending(snapshot, state.served)
    return ConditionValue("False", pending_reason.reason, pending_reason.message)


def _unvalidated(status: Status) -> ConditionValue | None:
    """Reset ModelValidated for a revision without a script, if an earlier revision had set it."""
    if conditions.find_condition(status.conditions, Type.MODEL_VALIDATED) is None:
        return None
    return ConditionValue("Unknown", Reason.NO_SCRIPT, "This revision has no validation script.")


def _undone(status: Status, type_: Type, served: Revision | None = None) -> ConditionValue | None:
    """Clear the condition. If it was never set and no revision is `served`, do not add it."""
    if served is None and conditions.find_condition(status.conditions, type_) is None:
        return None
    return ConditionValue("False", Reason.UPDATED, "The desired revision is served or being rolled out.")


def _counted(snapshot: Snapshot, status: Status) -> Status:
    """Set the replica counts from the pods, which change before the Deployment's status does."""
    servers = [pod for pod in snapshot.pods if pod.serves]
    return msgspec.structs.replace(
        status,
        replicas=len(servers),
        ready_replicas=sum(1 for pod in servers if pod.is_ready),
        selector=",".join(f"{name}={value}" for name, value in sorted(labels.servers(snapshot.serving).items())),
    )


def _worth_telling(previous: Status, now: Status) -> Status:
    """During a rollout, do not write the status only because `replicas` changed."""
    return previous if msgspec.structs.replace(now, replicas=previous.replicas) == previous else now


def _of_served(snapshot: Snapshot, status: Status, revision: Revision | None) -> dict[str, Any]:
    """Return the status fields of the served revision and its address."""
    address = snapshot.serving.address if revision is not None else ""
    known: dict[str, Any] = {
        "revision": revision.number if revision is not None else 0,
        "digest": revision.digest if revision is not None else "",
    }
    if isinstance(status, ModelDeploymentStatus):
        return {**known, "version": revision.want.version if revision is not None else "", "url": address}
    return {**known, "service_endpoint": address}
