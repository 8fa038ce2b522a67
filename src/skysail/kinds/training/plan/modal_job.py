"""Plan of a ModalJob: one TrainingJob that runs it, and a status that mirrors it. Pure."""

from __future__ import annotations

import msgspec

from skysail.base.names import ACCOUNT_MOCK, ACCOUNT_SIMULATED, Annotation, EventReason, Reason
from skysail.base.names import Condition as Type
from skysail.core import finalizers
from skysail.core.actions import Action, Apply, Event, Owner, Plan
from skysail.core.conditions import set_condition
from skysail.kinds.training.api.modal_job import MODAL_JOB, ModalJob, ModalJobStatus
from skysail.kinds.training.api.training_job import TRAINING_JOB, TrainingJob
from skysail.kinds.training.children import modal_job
from skysail.kinds.training.translated_snapshot import TranslatedSnapshot

FINISHED = frozenset({"Succeeded", "Failed"})
_PHASES = {"Running": "Running", "Succeeded": "Succeeded", "Failed": "Failed"}
_EVENTS = {
    "Running": (EventReason.JOB_STARTED, "The job runs at Modal."),
    "Succeeded": (EventReason.JOB_SUCCEEDED, "The job succeeded."),
    "Failed": (EventReason.JOB_FAILED, "The job failed."),
}


def plan(snapshot: TranslatedSnapshot[ModalJob]) -> Plan:
    job = snapshot.object
    if job.metadata.is_deleting:
        return Plan(actions=finalizers.remove_legacy_finalizers(MODAL_JOB.resource, job))
    errors = modal_job.errors(job.spec, snapshot.gang_limits)
    if errors:
        return refused(snapshot, Event(Reason.INVALID_SPEC, " ".join(errors), warning=True))
    status = _status(snapshot)
    return Plan(actions=_actions(snapshot), status=status, events=_events(snapshot, status))


def refused(snapshot: TranslatedSnapshot[ModalJob], event: Event) -> Plan:
    """Report a spec or a write that was rejected. Nothing runs until it is changed."""
    job = snapshot.object
    status = set_condition(snapshot, job.status, Type.ACCEPTED, "False", event.reason, event.message)
    status = msgspec.structs.replace(status, phase=status.phase or "Pending")
    return Plan(status=status, events=(event,) if status != job.status else ())


def _actions(snapshot: TranslatedSnapshot[ModalJob]) -> tuple[Action, ...]:
    """Return the write of the TrainingJob. A finished job does not run again when its TrainingJob is deleted."""
    job = snapshot.object
    is_over = job.status.phase in FINISHED and job.status.observed_generation == job.metadata.generation
    if is_over and snapshot.training is None:
        return ()
    return (Apply(TRAINING_JOB.resource, modal_job.training_job(job), Owner(MODAL_JOB.resource, job)),)


def _status(snapshot: TranslatedSnapshot[ModalJob]) -> ModalJobStatus:
    job, training = snapshot.object, snapshot.training
    status = set_condition(
        snapshot, job.status, Type.ACCEPTED, "True", Reason.ACCEPTED, "Skysail runs the job at Modal by a TrainingJob."
    )
    if training is None:
        return msgspec.structs.replace(status, phase=status.phase or "Pending")
    for row in training.status.conditions:
        if row.type != Type.ACCEPTED or row.status == "False":
            status = set_condition(snapshot, status, row.type, row.status, row.reason, row.message)
    finished = training.status.completion_time or ""
    phase = _PHASES.get(training.status.phase or "", "Pending")
    return msgspec.structs.replace(_with_instance(snapshot, status), phase=phase, finished_at=finished)


def _with_instance(snapshot: TranslatedSnapshot[ModalJob], status: ModalJobStatus) -> ModalJobStatus:
    """Return the status with ids and times of the newest instance. They are kept when its claim is gone."""
    claims = [claim for claim in snapshot.claims if claim.status.instance_id]
    if not claims:
        return status
    newest, written = claims[-1], snapshot.pod_annotations
    app = written.get(Annotation.MODAL_APP_ID) or newest.metadata.name
    return msgspec.structs.replace(
        status,
        modal_app_id=app,
        modal_function_id=written.get(Annotation.MODAL_FUNCTION_ID) or newest.status.instance_id,
        tunnel_url=written.get(Annotation.MODAL_TUNNEL_URL, "") if snapshot.object.spec.tunnel_enabled else "",
        log_url=written.get(Annotation.MODAL_LOG_URL, ""),
        created_at=newest.status.start_time or "",
        started_at=newest.status.ready_time or "",
        simulated=newest.spec.account in {ACCOUNT_MOCK, ACCOUNT_SIMULATED},
    )


def _events(snapshot: TranslatedSnapshot[ModalJob], status: ModalJobStatus) -> tuple[Event, ...]:
    """Return the event of a phase that is new."""
    if status.phase == snapshot.object.status.phase or status.phase not in _EVENTS:
        return ()
    reason, message = _EVENTS[status.phase]
    return (Event(reason, f"{message} {_why(snapshot.training)}".strip(), warning=status.phase == "Failed"),)


def _why(training: TrainingJob | None) -> str:
    rows = training.status.conditions if training is not None else ()
    failed = next((row for row in rows if row.type == Type.SUCCEEDED and row.status == "False"), None)
    return failed.message if failed is not None else ""
