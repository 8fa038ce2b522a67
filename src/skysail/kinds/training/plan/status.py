"""Status of a TrainingJob: workers and conditions. Pure."""

from __future__ import annotations

from typing import Literal, cast

import msgspec

from skysail.base.names import Condition as Type
from skysail.base.names import Label, Reason
from skysail.base.timestamps import timestamp
from skysail.core import conditions
from skysail.core.actions import Event
from skysail.core.conditions import Value, set_condition
from skysail.kinds.training.api.training_job import Phase, TrainingJobStatus, WorkerStatus
from skysail.kinds.training.objects import WORKER, Pod, latest_by_rank
from skysail.kinds.training.plan import completion
from skysail.kinds.training.snapshot import Snapshot

PodPhase = Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]

_ENDED = {"Succeeded", "Failed"}
_NOT_ENDED = "The training has not finished yet."


def in_progress(
    snapshot: Snapshot, status: TrainingJobStatus, phase: Phase, reason: str, message: str, *, ignored_error: str = ""
) -> TrainingJobStatus:
    """Return the status of an unfinished job. `message` goes into the condition Running.

    `ignored_error` is the validation error of a changed spec that the current attempt ignores.
    """
    runs: Value = "True" if phase == "Running" else "False"
    if ignored_error:
        goes_on = f"The current attempt continues with its old spec. {ignored_error}"
        status = set_condition(snapshot, status, Type.ACCEPTED, "False", Reason.INVALID_SPEC, goes_on)
    else:
        status = accepted(snapshot, status)
    status = set_condition(snapshot, status, Type.RUNNING, runs, reason, message)
    status = set_condition(snapshot, status, Type.SUCCEEDED, "Unknown", Reason.IN_PROGRESS, _NOT_ENDED)
    return msgspec.structs.replace(status, phase=phase)


def finished(
    snapshot: Snapshot,
    status: TrainingJobStatus,
    phase: Literal["Succeeded", "Failed"],
    reason: str,
    message: str,
) -> TrainingJobStatus:
    """Return the status of a finished job."""
    succeeded: Value = "True" if phase == "Succeeded" else "False"
    status = set_condition(snapshot, accepted(snapshot, status), Type.RUNNING, "False", reason, message)
    status = set_condition(snapshot, status, Type.SUCCEEDED, succeeded, reason, message)
    return msgspec.structs.replace(status, phase=phase, completion_time=timestamp(snapshot.now), replicas=0)


def write_rejected(snapshot: Snapshot, event: Event) -> TrainingJobStatus:
    """Return the status after a rejected write: only the condition Accepted changes."""
    status = set_condition(snapshot, snapshot.object.status, Type.ACCEPTED, "False", event.reason, event.message)
    return msgspec.structs.replace(status, phase=status.phase or "Pending")


def invalid_spec(snapshot: Snapshot, status: TrainingJobStatus, message: str) -> TrainingJobStatus:
    """Return the status of a job whose spec is invalid: no attempt starts."""
    status = set_condition(snapshot, status, Type.ACCEPTED, "False", Reason.INVALID_SPEC, message)
    status = set_condition(snapshot, status, Type.RUNNING, "False", Reason.INVALID_SPEC, message)
    status = set_condition(snapshot, status, Type.SUCCEEDED, "Unknown", Reason.IN_PROGRESS, _NOT_ENDED)
    return msgspec.structs.replace(status, phase="Restarting" if status.attempts else "Pending")


def with_gang_condition(snapshot: Snapshot, status: TrainingJobStatus, missing: str | None) -> TrainingJobStatus:
    """Set `GangUnavailable`. If the scheduler was never missing, do not add the condition."""
    if missing is not None:
        return set_condition(snapshot, status, Type.GANG_UNAVAILABLE, "True", Reason.GANG_UNAVAILABLE, missing)
    if conditions.find_condition(status.conditions, Type.GANG_UNAVAILABLE) is None:
        return status
    there = "The gang scheduler is installed, or the job does not use it any more."
    return set_condition(snapshot, status, Type.GANG_UNAVAILABLE, "False", Reason.GANG_AVAILABLE, there)


def accepted(snapshot: Snapshot, status: TrainingJobStatus) -> TrainingJobStatus:
    """Set the condition Accepted to True."""
    return set_condition(snapshot, status, Type.ACCEPTED, "True", Reason.ACCEPTED, "Skysail works on this TrainingJob.")


def with_workers(snapshot: Snapshot, status: TrainingJobStatus, number: int) -> TrainingJobStatus:
    """Return the status with the workers of this attempt."""
    last, replaced = _workers(snapshot, number)
    workers = _done(snapshot, status, number)
    workers |= {index: _worker(pod, number + replaced[index]) for index, pod in last.items()}
    return msgspec.structs.replace(
        status,
        worker_statuses=tuple(worker for _, worker in sorted(workers.items())),
        replicas=sum(1 for pod in last.values() if not pod.is_finished and not pod.metadata.is_deleting),
        selector=f"{Label.TRAINING_JOB_UID}={snapshot.object.metadata.uid},{Label.WORKER}={WORKER}",
    )


def with_final_workers(snapshot: Snapshot, status: TrainingJobStatus) -> TrainingJobStatus:
    """Return the status with the remaining pods of a finished job; deleted workers keep their final phase."""
    if not status.attempts:
        return status
    number = status.attempts[-1].number
    last, replaced = _workers(snapshot, number)
    # If the job succeeded, a failed worker was replaced, even if the replacement was never seen.
    ended = {"Succeeded"} if status.phase == "Succeeded" else _ENDED
    known = {worker.worker_id: worker for worker in status.worker_statuses if worker.phase in ended}
    now = {index: _worker(pod, number + replaced[index]) for index, pod in last.items() if not pod.metadata.is_deleting}
    workers = (known | now).items()
    return msgspec.structs.replace(status, worker_statuses=tuple(worker for _, worker in sorted(workers)))


def is_deferrable(old: TrainingJobStatus, new: TrainingJobStatus) -> bool:
    """Return whether only the starting of pods changed, so that the write may be delayed."""
    running = conditions.find_condition(new.conditions, Type.RUNNING)
    if new.phase != "Pending" or running is None:
        return False
    if old == TrainingJobStatus():
        accepted_ = conditions.find_condition(new.conditions, Type.ACCEPTED)
        return new.failure is None and accepted_ is not None and accepted_.status == "True"
    written = conditions.replace_condition(old.conditions, running)
    return new == msgspec.structs.replace(
        old, conditions=written, worker_statuses=new.worker_statuses, replicas=new.replicas
    )


def _workers(snapshot: Snapshot, number: int) -> tuple[dict[int, Pod], dict[int, int]]:
    """Return the newest pod of each index, and the number of earlier pods of the index in this attempt.

    Pods that ended because they were deleted are left out: their phase says nothing about their work.
    """
    pods = [
        pod
        for pod in snapshot.pods
        if (pod.attempt, pod.role) == (number, WORKER) and not (pod.is_finished and pod.metadata.is_deleting)
    ]
    last = {index: pod for (_, index), pod in latest_by_rank(pods).items()}
    return last, {index: sum(1 for pod in pods if pod.index == index) - 1 for index in last}


def _done(snapshot: Snapshot, status: TrainingJobStatus, number: int) -> dict[int, WorkerStatus]:
    """Return the completed workers as they were last seen, because their pods may be deleted."""
    done = completion.completed_ranks(snapshot.run(number))
    return {
        worker.worker_id: msgspec.structs.replace(worker, phase="Succeeded")
        for worker in status.worker_statuses
        if (WORKER, worker.worker_id) in done
    }


def _worker(pod: Pod, restarts_before: int) -> WorkerStatus:
    known = pod.status.phase in {"Pending", "Running", "Succeeded", "Failed"}
    return WorkerStatus(
        worker_id=pod.index,
        pod_name=pod.metadata.name,
        phase=cast("PodPhase", pod.status.phase) if known else "Unknown",
        restart_count=restarts_before + pod.restarts,
    )
