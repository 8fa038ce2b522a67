"""Plan of a TrainJob without Kubeflow Trainer: one TrainingJob that runs it, and a status in Trainer's words. Pure."""

from __future__ import annotations

import msgspec

from skysail.base.names import Condition as Type
from skysail.base.names import Reason
from skysail.core import finalizers
from skysail.core.actions import Action, Apply, Event, Owner, Plan
from skysail.core.conditions import set_condition
from skysail.kinds.training.api.train_job import (
    TRAIN_JOB,
    JobStatus,
    TrainerMetric,
    TrainerStatus,
    TrainJob,
    TrainJobStatus,
)
from skysail.kinds.training.api.training_job import TRAINING_JOB, TrainingJob
from skysail.kinds.training.children import train_job
from skysail.kinds.training.translated_snapshot import TranslatedSnapshot

OUR_CONTROLLER = "trainer.kubeflow.org/trainjob-controller"
_FINISHED = frozenset({"Complete", "Failed"})


def plan(snapshot: TranslatedSnapshot[TrainJob]) -> Plan:
    job = snapshot.object
    if job.metadata.is_deleting:
        return Plan(actions=finalizers.remove_legacy_finalizers(TRAIN_JOB.resource, job))
    if job.spec.managed_by != OUR_CONTROLLER:
        return Plan()
    errors = train_job.errors(job.spec)
    if errors:
        return refused(snapshot, Event(Reason.INVALID_SPEC, " ".join(errors), warning=True))
    return Plan(actions=_actions(snapshot), status=_status(snapshot))


def refused(snapshot: TranslatedSnapshot[TrainJob], event: Event) -> Plan:
    """Report a spec or a write that was rejected. Nothing runs until it is changed."""
    job = snapshot.object
    status = set_condition(snapshot, job.status, Type.ACCEPTED, "False", event.reason, event.message)
    return Plan(status=status, events=(event,) if status != job.status else ())


def _actions(snapshot: TranslatedSnapshot[TrainJob]) -> tuple[Action, ...]:
    """Return the write of the TrainingJob. A finished job does not run again when its TrainingJob is deleted."""
    job = snapshot.object
    is_finished = any(row.type in _FINISHED and row.status == "True" for row in job.status.conditions)
    if is_finished and snapshot.training is None:
        return ()
    child = train_job.training_job(job, snapshot.script)
    return (Apply(TRAINING_JOB.resource, child, Owner(TRAIN_JOB.resource, job)),)


def _status(snapshot: TranslatedSnapshot[TrainJob]) -> TrainJobStatus:
    job, training = snapshot.object, snapshot.training
    message = "Skysail runs the job by a TrainingJob, because Kubeflow Trainer is not installed."
    status = set_condition(snapshot, job.status, Type.ACCEPTED, "True", Reason.ACCEPTED, message)
    if training is None:
        return status
    match training.status.phase:
        case "Succeeded":
            done = "jobs completed successfully"
            status = set_condition(snapshot, status, Type.COMPLETE, "True", Reason.JOBS_COMPLETED, done)
        case "Failed":
            status = set_condition(snapshot, status, Type.FAILED, "True", Reason.JOBS_FAILED, _why(training))
        case "Suspended":
            status = set_condition(snapshot, status, Type.SUSPENDED, "True", Reason.SUSPENDED, "TrainJob is suspended")
        case _ if any(row.type == Type.SUSPENDED and row.status == "True" for row in status.conditions):
            status = set_condition(snapshot, status, Type.SUSPENDED, "False", Reason.RESUMED, "TrainJob is resumed")
    return msgspec.structs.replace(
        status, jobs_status=(_job_status(training),), trainer_status=_trainer_status(training)
    )


def _job_status(training: TrainingJob) -> JobStatus:
    phase = training.status.phase
    return JobStatus(
        name="node",
        ready=int(phase == "Running"),
        succeeded=int(phase == "Succeeded"),
        failed=int(phase == "Failed"),
        active=int(phase in {"Running", "Pending", "Restarting"}),
        suspended=int(phase == "Suspended"),
    )


def _trainer_status(training: TrainingJob) -> TrainerStatus | None:
    progress = training.status.progress
    if progress is None:
        return None
    return TrainerStatus(
        progress_percentage=progress.percent,
        estimated_remaining_seconds=progress.estimated_remaining_seconds,
        metrics=tuple(TrainerMetric(name=metric.name, value=metric.value) for metric in progress.metrics),
        last_updated_time=progress.last_updated_time,
    )


def _why(training: TrainingJob) -> str:
    rows = training.status.conditions
    return next((row.message for row in rows if row.type == Type.SUCCEEDED), "The training failed.")
