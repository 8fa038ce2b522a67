"""End of an attempt, by precedence of causes, and end of the job. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

from skysail.base.names import Event, Reason
from skysail.core.actions import Note
from skysail.kinds.training.admission.validation import objections
from skysail.kinds.training.api.training_job import Cause, Failure, TrainingJob, TrainingJobSpec, TrainingJobStatus
from skysail.kinds.training.objects import WORKER, Job, named
from skysail.kinds.training.plan import attempts, completion, failure, gang_admission
from skysail.kinds.training.plan.failure import Mishap
from skysail.kinds.training.snapshot import Run, Snapshot

_FREE = "A new attempt starts and costs no retry."
_COMPLETED = "Training job completed successfully"
_EVENTS = {"NodeLost": Event.NODE_LOST, "Preempted": Event.PREEMPTED, "Deleted": Event.POD_DELETED}


class End(msgspec.Struct, frozen=True):
    """End of an attempt: cause, sentence, failed pod and events."""

    cause: Cause
    message: str
    failure: Failure | None = None
    is_final: bool = False
    notes: tuple[Note, ...] = ()


class Verdict(msgspec.Struct, frozen=True):
    """End of the job."""

    phase: Literal["Succeeded", "Failed"]
    reason: Reason
    message: str

    @property
    def note(self) -> Note:
        if self.phase == "Succeeded":
            return Note(Event.TRAINING_COMPLETED, self.message)
        return Note(Event.TRAINING_FAILED, self.message, warning=True)


def end_of(snapshot: Snapshot, run: Run) -> End | None:
    """Return why the attempt ends, or None.

    Observed causes come before requested ones: a failure is recorded even if the job is being suspended.
    """
    job = snapshot.object
    if completion.has_succeeded(job.spec, run):
        return End("Succeeded", _COMPLETED)
    mishap = failure.ended_badly(job.spec, run)
    if mishap is not None:
        return _mishap(mishap, snapshot.log)
    taken = gang_admission.revoked(snapshot)
    if taken is not None:
        message = f"{taken} {_FREE}"
        return End("Evicted", message, notes=(Note(Event.GANG_EVICTED, message, warning=True),))
    late = until_deadline(snapshot)
    if late is not None and late <= 0:
        return End("DeadlineExceeded", deadline_sentence(job))
    if job.spec.suspend:
        message = "The job is suspended: its pods terminate, its checkpoints stay. Set spec.suspend to false to resume."
        return End("Suspended", message, notes=(Note(Event.TRAINING_SUSPENDED, message),))
    return _undone(snapshot, run)


def unheeded(snapshot: Snapshot, run: Run) -> tuple[str, ...]:
    """Return errors of a spec that changed during the attempt. An invalid change never ends a running attempt."""
    return () if outdated(snapshot.object.spec, run) is None else wrongs(snapshot)


def wrongs(snapshot: Snapshot) -> tuple[str, ...]:
    """Return errors of the current spec: validation errors first, otherwise the preflight error."""
    return objections(snapshot.object) or (() if snapshot.refusal is None else (snapshot.refusal,))


def outdated(spec: TrainingJobSpec, run: Run) -> Job | None:
    """Return a Job that was created from another spec, or None."""
    wanted = attempts.trained(spec)
    return next((job for job in run.jobs if job.trained_spec not in {"", wanted}), None)


def verdict(spec: TrainingJobSpec, status: TrainingJobStatus, end: End) -> Verdict | None:
    """Return the result of the job, or None if another attempt may follow."""
    match end.cause:
        case "Succeeded":
            return Verdict("Succeeded", Reason.COMPLETED, end.message)
        case "DeadlineExceeded":
            return Verdict("Failed", Reason.DEADLINE_EXCEEDED, end.message)
        case "Failed" if spec.restart_policy == "Never":
            message = f"{end.message} The job is not retried because restartPolicy is Never; set OnFailure to retry."
            return Verdict("Failed", Reason.NOT_RESTARTED, message)
        case "Failed" if end.is_final or status.retries > spec.run_policy.backoff_limit:
            return Verdict("Failed", Reason.BACKOFF_LIMIT_EXCEEDED, f"{end.message} {_used_up(spec, status)}")
        case _:
            return None


def until_deadline(snapshot: Snapshot) -> float | None:
    """Return the seconds until the deadline, or None without a deadline or before the job runs."""
    job = snapshot.object
    limit = job.spec.run_policy.active_deadline_seconds
    if limit is None or job.status.start_time is None:
        return None
    return (attempts.moment(job.status.start_time) - snapshot.now).total_seconds() + limit


def deadline_sentence(job: TrainingJob) -> str:
    limit = job.spec.run_policy.active_deadline_seconds
    return f"The job ran longer than runPolicy.activeDeadlineSeconds ({limit} s)."


def _mishap(mishap: Mishap, log: str | None) -> End:
    what = failure.with_log(mishap.failure, log)
    if mishap.cause == "Failed":
        note = Note(Event.WORKER_FAILED, f"{named(what.role, what.index)} failed", warning=True)
        return End("Failed", failure.sentence(what), what, mishap.is_final, (note,))
    message = f"{failure.sentence(what, mishap.cause)} {_FREE}"
    return End(mishap.cause, message, what, notes=(Note(_EVENTS[mishap.cause], message, warning=True),))


def _undone(snapshot: Snapshot, run: Run) -> End | None:
    """Return the end of an attempt whose spec changed or whose Job was deleted."""
    job = snapshot.object
    before = outdated(job.spec, run)
    if before is None:
        return _vanished(snapshot, run)
    return None if wrongs(snapshot) else _changed(job.spec, run, before)


def _changed(spec: TrainingJobSpec, run: Run, made: Job) -> End:
    before = next((job.spec.parallelism for job in run.jobs if job.role == WORKER), spec.workers)
    if attempts.trained(msgspec.structs.replace(spec, workers=before)) == made.trained_spec:
        message = f"The number of workers changed from {before} to {spec.workers}, so a new attempt starts."
        return End("WorldSizeChanged", message, notes=(Note(Event.WORLD_SIZE_CHANGED, message),))
    message = "The spec changed, so a new attempt starts."
    return End("SpecChanged", message, notes=(Note(Event.SPEC_CHANGED, message),))


def _vanished(snapshot: Snapshot, run: Run) -> End | None:
    """Return the end of an attempt with a deleted Job: the other pods cannot continue without it."""
    if not snapshot.vanished or attempts.recorded(snapshot.object.status, run.number) is None:
        return None
    message = f"Job {min(snapshot.vanished)} was deleted, so a new attempt starts."
    return End("Deleted", message, notes=(Note(Event.JOB_DELETED, message, warning=True),))


def _used_up(spec: TrainingJobSpec, status: TrainingJobStatus) -> str:
    limit = spec.run_policy.backoff_limit
    if attempts.is_crash_loop(status):
        return f"All retries (runPolicy.backoffLimit: {limit}) failed in the same way: read the log in status.failure."
    return f"All retries are used up (runPolicy.backoffLimit: {limit})."
