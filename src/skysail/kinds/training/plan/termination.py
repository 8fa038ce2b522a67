"""End of an attempt, by precedence of causes, and end of the job. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

from skysail.base.names import EventReason, Reason
from skysail.core.actions import Event
from skysail.kinds.training.admission.validation import validate
from skysail.kinds.training.api.training_job import Cause, Failure, TrainingJob, TrainingJobSpec, TrainingJobStatus
from skysail.kinds.training.children.spec_hash import attempt_spec_hash
from skysail.kinds.training.objects import WORKER, Job, display_name
from skysail.kinds.training.plan import attempts, completion, failure, gang_admission
from skysail.kinds.training.plan.failure import AttemptFailure
from skysail.kinds.training.plan.field_names import FieldNames, field_names
from skysail.kinds.training.snapshot import AttemptState, Snapshot

_FREE = "A new attempt starts and costs no retry."
_COMPLETED = "Training job completed successfully"
_EVENTS = {"NodeLost": EventReason.NODE_LOST, "Preempted": EventReason.PREEMPTED, "Deleted": EventReason.POD_DELETED}


class AttemptEnd(msgspec.Struct, frozen=True):
    """End of an attempt: cause, sentence, failed pod and events."""

    cause: Cause
    message: str
    failure: Failure | None = None
    is_final: bool = False
    notes: tuple[Event, ...] = ()


class JobResult(msgspec.Struct, frozen=True):
    """End of the job."""

    phase: Literal["Succeeded", "Failed"]
    reason: Reason
    message: str

    @property
    def note(self) -> Event:
        if self.phase == "Succeeded":
            return Event(EventReason.TRAINING_COMPLETED, self.message)
        return Event(EventReason.TRAINING_FAILED, self.message, warning=True)


def attempt_end(snapshot: Snapshot, attempt: AttemptState) -> AttemptEnd | None:
    """Return why the attempt ends, or None.

    Observed causes come before requested ones: a failure is recorded even if the job is being suspended.
    """
    job = snapshot.object
    if completion.has_succeeded(job.spec, attempt):
        return AttemptEnd("Succeeded", _COMPLETED)
    failed = failure.find_failure(job.spec, attempt)
    if failed is not None:
        return _failure_end(failed, snapshot.log, field_names(job))
    taken = gang_admission.revoked(snapshot)
    if taken is not None:
        message = f"{taken} {_FREE}"
        return AttemptEnd("Evicted", message, notes=(Event(EventReason.GANG_EVICTED, message, warning=True),))
    seconds_left = until_deadline(snapshot)
    if seconds_left is not None and seconds_left <= 0:
        return AttemptEnd("DeadlineExceeded", deadline_sentence(job))
    if job.spec.suspend:
        message = "The job is suspended: its pods terminate, its checkpoints stay. Set spec.suspend to false to resume."
        return AttemptEnd("Suspended", message, notes=(Event(EventReason.TRAINING_SUSPENDED, message),))
    return _undone(snapshot, attempt)


def ignored_change_errors(snapshot: Snapshot, attempt: AttemptState) -> tuple[str, ...]:
    """Return errors of a spec that changed during the attempt. An invalid change never ends a running attempt."""
    return () if outdated_job(snapshot.object.spec, attempt) is None else spec_errors(snapshot)


def spec_errors(snapshot: Snapshot) -> tuple[str, ...]:
    """Return errors of the current spec: validation errors first, otherwise the preflight error."""
    return validate(snapshot.object) or (() if snapshot.preflight_error is None else (snapshot.preflight_error,))


def outdated_job(spec: TrainingJobSpec, attempt: AttemptState) -> Job | None:
    """Return a Job that was created from another spec, or None."""
    desired = attempt_spec_hash(spec)
    return next((job for job in attempt.jobs if job.trained_spec not in {"", desired}), None)


def job_result(job: TrainingJob, status: TrainingJobStatus, ending: AttemptEnd) -> JobResult | None:
    """Return the result of the job, or None if another attempt may follow. `status`: status with the ended attempt."""
    spec, fields = job.spec, field_names(job)
    match ending.cause:
        case "Succeeded":
            return JobResult("Succeeded", Reason.COMPLETED, ending.message)
        case "DeadlineExceeded":
            return JobResult("Failed", Reason.DEADLINE_EXCEEDED, ending.message)
        case "Failed" if spec.restart_policy == "Never":
            message = f"{ending.message} The job is not retried {fields.never_retried}."
            return JobResult("Failed", Reason.RESTART_POLICY_NEVER, message)
        case "Failed" if ending.is_final or status.retries > spec.run_policy.backoff_limit:
            return JobResult(
                "Failed", Reason.BACKOFF_LIMIT_EXCEEDED, f"{ending.message} {_used_up(spec, status, fields)}"
            )
        case _:
            return None


def until_deadline(snapshot: Snapshot) -> float | None:
    """Return the seconds until the deadline, or None without a deadline or before the job runs."""
    job = snapshot.object
    limit = job.spec.run_policy.active_deadline_seconds
    if limit is None or job.status.start_time is None:
        return None
    return (attempts.parse_time(job.status.start_time) - snapshot.now).total_seconds() + limit


def deadline_sentence(job: TrainingJob) -> str:
    limit = job.spec.run_policy.active_deadline_seconds
    return f"The job ran longer than {field_names(job).deadline} ({limit} s)."


def _failure_end(failed: AttemptFailure, log: str | None, fields: FieldNames) -> AttemptEnd:
    what = failure.with_log(failed.failure, log)
    if failed.cause == "Failed":
        event = Event(EventReason.WORKER_FAILED, f"{display_name(what.role, what.index)} failed", warning=True)
        return AttemptEnd("Failed", failure.message(what, fields=fields), what, failed.is_final, (event,))
    message = f"{failure.message(what, failed.cause, fields)} {_FREE}"
    return AttemptEnd(failed.cause, message, what, notes=(Event(_EVENTS[failed.cause], message, warning=True),))


def _undone(snapshot: Snapshot, attempt: AttemptState) -> AttemptEnd | None:
    """Return the end of an attempt whose spec changed or whose Job was deleted."""
    job = snapshot.object
    previous = outdated_job(job.spec, attempt)
    if previous is None:
        return _vanished(snapshot, attempt)
    return None if spec_errors(snapshot) else _changed(job.spec, attempt, previous)


def _changed(spec: TrainingJobSpec, attempt: AttemptState, made: Job) -> AttemptEnd:
    previous = next((job.spec.parallelism for job in attempt.jobs if job.role == WORKER), spec.workers)
    if attempt_spec_hash(msgspec.structs.replace(spec, workers=previous)) == made.trained_spec:
        message = f"The number of workers changed from {previous} to {spec.workers}, so a new attempt starts."
        return AttemptEnd("WorldSizeChanged", message, notes=(Event(EventReason.WORLD_SIZE_CHANGED, message),))
    message = "The spec changed, so a new attempt starts."
    return AttemptEnd("SpecChanged", message, notes=(Event(EventReason.SPEC_CHANGED, message),))


def _vanished(snapshot: Snapshot, attempt: AttemptState) -> AttemptEnd | None:
    """Return the end of an attempt with a deleted Job: the other pods cannot continue without it."""
    if not snapshot.missing_jobs or attempts.find(snapshot.object.status, attempt.number) is None:
        return None
    message = f"Job {min(snapshot.missing_jobs)} was deleted, so a new attempt starts."
    return AttemptEnd("Deleted", message, notes=(Event(EventReason.JOB_DELETED, message, warning=True),))


def _used_up(spec: TrainingJobSpec, status: TrainingJobStatus, fields: FieldNames) -> str:
    limit = spec.run_policy.backoff_limit
    if attempts.is_crash_loop(status):
        return f"All retries ({fields.retries}: {limit}) failed in the same way: {fields.log_hint}."
    return f"All retries are used up ({fields.retries}: {limit})."
