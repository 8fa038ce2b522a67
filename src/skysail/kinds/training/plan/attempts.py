"""Ledger of attempts in the status: the current attempt, the causes of earlier ends, and the start of the next one.

Jobs of an ended attempt are deleted, so its result is written to the status first. Pure.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from skysail.base.backoff import delay_bound
from skysail.base.timestamps import timestamp
from skysail.kinds.training.api.training_job import (
    Attempt,
    Cause,
    Failure,
    TrainingJob,
    TrainingJobStatus,
)
from skysail.kinds.training.children.spec_hash import job_spec_hash
from skysail.kinds.training.snapshot import Snapshot

_REMEMBERED = 10
_FIRST_DELAY = 10.0
_MAX_DELAY = 300.0
# An attempt that ran this long was healthy: its failure is unrelated to earlier ones.
HEALTHY = timedelta(minutes=10)
_LOOP = 3
_MAX_LINE_LENGTH = 256
_FAILURE_CAUSES: frozenset[Cause] = frozenset({"Failed", "Preempted", "NodeLost"})


def active_number(snapshot: Snapshot) -> int | None:
    """Return the number of the current attempt, or None.

    Jobs may be ahead of the status, which is written after them.
    """
    attempts = snapshot.object.status.attempts
    made = max((job.attempt for job in snapshot.jobs if not job.metadata.is_deleting), default=-1)
    if attempts and attempts[-1].end_time is None:
        return max(attempts[-1].number, made)
    return made if made >= next_number(snapshot.object.status) else None


def next_number(status: TrainingJobStatus) -> int:
    """Return the number of the attempt after the last recorded one."""
    return status.attempts[-1].number + 1 if status.attempts else 0


def find(status: TrainingJobStatus, number: int) -> Attempt | None:
    return next((attempt for attempt in status.attempts if attempt.number == number), None)


def open_attempt(status: TrainingJobStatus, begun: Attempt) -> TrainingJobStatus:
    """Return the status with this attempt added. After a correction of the spec, the retries count from 0."""
    if find(status, begun.number) is not None:
        return status
    last = status.attempts[-1] if status.attempts else begun
    is_corrected = last.spec_hash not in {"", begun.spec_hash}
    return msgspec.structs.replace(
        status,
        attempts=(*status.attempts, begun)[-_REMEMBERED:],
        retries=0 if is_corrected else status.retries,
    )


def mark_running(status: TrainingJobStatus, since: str) -> TrainingJobStatus:
    """Return the status with the time when all pods of the last attempt ran. The first value stays."""
    last = status.attempts[-1]
    if last.run_time is not None:
        return status
    last = msgspec.structs.replace(last, run_time=since)
    return msgspec.structs.replace(
        status, attempts=(*status.attempts[:-1], last), start_time=status.start_time or since
    )


def close_attempt(
    status: TrainingJobStatus, cause: Cause, failure: Failure | None, *, now: datetime
) -> TrainingJobStatus:
    """Return the status with the end of the last attempt.

    Only `status.failure` keeps the whole log of the failure; the ledger keeps its last line.
    """
    short = None if failure is None else msgspec.structs.replace(failure, message=_last_line(failure.message))
    last = msgspec.structs.replace(status.attempts[-1], end_time=timestamp(now), cause=cause, failure=short)
    return msgspec.structs.replace(
        status,
        attempts=(*status.attempts[:-1], last),
        retries=status.retries + (cause == "Failed"),
        failure=failure or status.failure,
        replicas=0,
    )


def restart_delay(job: TrainingJob, now: datetime) -> timedelta:
    """Return the remaining backoff of the next attempt. A clock that was set back does not prolong it."""
    streak = _streak(job.status, job_spec_hash(job.spec))
    if not streak:
        return timedelta()
    delay = timedelta(seconds=delay_bound(streak - 1, first=_FIRST_DELAY, longest=_MAX_DELAY))
    remaining = parse_time(job.status.attempts[-1].end_time) + delay - now
    return remaining if timedelta() < remaining <= delay else timedelta()


def is_crash_loop(status: TrainingJobStatus) -> bool:
    """Return whether the last attempts failed in the same way: same pod, same exit code, before they were healthy."""
    last = status.attempts[-_LOOP:]
    if len(last) < _LOOP or any(attempt.cause != "Failed" or attempt.failure is None for attempt in last):
        return False
    return (
        not any(map(_was_healthy, last))
        and len({(attempt.spec_hash, _signature(attempt.failure)) for attempt in last}) == 1
    )


def parse_time(time: str | None) -> datetime:
    assert time is not None, "only a past event has a time"
    return datetime.fromisoformat(time)


def _streak(status: TrainingJobStatus, desired: str) -> int:
    """Return the number of consecutive attempts that failed before they were healthy. The last one always counts."""
    streak = 0
    for attempt in reversed(status.attempts):
        if attempt.cause not in _FAILURE_CAUSES or (streak and _was_healthy(attempt)):
            break
        if attempt.spec_hash not in {"", desired}:
            break
        streak += 1
        if _was_healthy(attempt):
            break
    return streak


def _was_healthy(attempt: Attempt) -> bool:
    if attempt.run_time is None or attempt.end_time is None:
        return False
    return parse_time(attempt.end_time) - parse_time(attempt.run_time) >= HEALTHY


def _signature(failure: Failure | None) -> tuple[str, int | None, int | None] | None:
    return None if failure is None else (failure.role, failure.index, failure.exit_code)


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:_MAX_LINE_LENGTH] if lines else ""
