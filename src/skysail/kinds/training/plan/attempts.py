"""The ledger of attempts in the status: which one is under way, what ended the others, when the next one may begin.

Jobs of an attempt that is over are deleted, so what must be remembered of it is written here first. Pure.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta

import msgspec

from skysail.base.backoff import delay_after
from skysail.base.timestamps import timestamp
from skysail.kinds.training.api.training_job import (
    Attempt,
    Cause,
    Failure,
    TrainingJob,
    TrainingJobSpec,
    TrainingJobStatus,
)
from skysail.kinds.training.children.replica_groups import is_elastic
from skysail.kinds.training.snapshot import Snapshot

_REMEMBERED = 10
_FIRST_DELAY = 10.0
_LONGEST_DELAY = 300.0
# An attempt that ran for so long was healthy: what ends it then has nothing to do with how the last ones ended.
HEALTHY = timedelta(minutes=10)
_LOOP = 3
_LONGEST_LINE = 256
_MISHAPS: frozenset[Cause] = frozenset({"Failed", "Preempted", "NodeLost"})
_LIFECYCLE = {"suspend", "managedBy", "runPolicy", "restartPolicy"}


def under_way(snapshot: Snapshot) -> int | None:
    """The number of the attempt that is not over. Jobs may be ahead of the status: it is written after them."""
    attempts = snapshot.object.status.attempts
    made = max((job.attempt for job in snapshot.jobs if not job.metadata.is_deleting), default=-1)
    if attempts and attempts[-1].end_time is None:
        return max(attempts[-1].number, made)
    return made if made >= following(snapshot.object.status) else None


def following(status: TrainingJobStatus) -> int:
    """The number of the attempt after those that were written down."""
    return status.attempts[-1].number + 1 if status.attempts else 0


def recorded(status: TrainingJobStatus, number: int) -> Attempt | None:
    return next((attempt for attempt in status.attempts if attempt.number == number), None)


def opened(status: TrainingJobStatus, begun: Attempt) -> TrainingJobStatus:
    """With this attempt among those that were begun. What failed before the spec was corrected costs nothing now."""
    if recorded(status, begun.number) is not None:
        return status
    last = status.attempts[-1] if status.attempts else begun
    is_corrected = last.spec_hash not in {"", begun.spec_hash}
    return msgspec.structs.replace(
        status,
        attempts=(*status.attempts, begun)[-_REMEMBERED:],
        retries=0 if is_corrected else status.retries,
    )


def ran(status: TrainingJobStatus, since: str) -> TrainingJobStatus:
    """With the moment when all pods of the last attempt ran. It is told once."""
    last = status.attempts[-1]
    if last.run_time is not None:
        return status
    last = msgspec.structs.replace(last, run_time=since)
    return msgspec.structs.replace(
        status, attempts=(*status.attempts[:-1], last), start_time=status.start_time or since
    )


def closed(status: TrainingJobStatus, cause: Cause, failure: Failure | None, *, now: datetime) -> TrainingJobStatus:
    """With the end of the last attempt. The log of its failure is kept once, beside the ledger."""
    short = None if failure is None else msgspec.structs.replace(failure, message=_last_line(failure.message))
    last = msgspec.structs.replace(status.attempts[-1], end_time=timestamp(now), cause=cause, failure=short)
    return msgspec.structs.replace(
        status,
        attempts=(*status.attempts[:-1], last),
        retries=status.retries + (cause == "Failed"),
        failure=failure or status.failure,
        replicas=0,
    )


def pause(job: TrainingJob, now: datetime) -> timedelta:
    """How long the next attempt has still to wait. A clock that was set back does not make it longer."""
    streak = _streak(job.status, asked(job.spec))
    if not streak:
        return timedelta()
    delay = timedelta(seconds=delay_after(streak - 1, first=_FIRST_DELAY, longest=_LONGEST_DELAY))
    left = moment(job.status.attempts[-1].end_time) + delay - now
    return left if timedelta() < left <= delay else timedelta()


def is_crash_loop(status: TrainingJobStatus) -> bool:
    """Whether the last attempts failed alike: the same pod, the same exit code, before they were healthy."""
    last = status.attempts[-_LOOP:]
    if len(last) < _LOOP or any(each.cause != "Failed" or each.failure is None for each in last):
        return False
    return not any(map(_was_healthy, last)) and len({(each.spec_hash, _signature(each.failure)) for each in last}) == 1


def trained(spec: TrainingJobSpec) -> str:
    """A hash of what an attempt is made from: with another one, the attempt under way is not what people want.

    How many workers an elastic job has is no part of it, nor is what only the operator reads.
    """
    return asked(spec) if is_elastic(spec) else _hash(spec, aside=_LIFECYCLE)


def asked(spec: TrainingJobSpec) -> str:
    """A hash of what is trained, with however many workers: what failed with another one says nothing of this one."""
    return _hash(spec, aside=_LIFECYCLE | {"workers"})


def is_untried(job: TrainingJob) -> bool:
    """Whether no attempt was made yet from what is asked for now."""
    last = job.status.attempts[-1] if job.status.attempts else None
    return last is None or last.spec_hash != asked(job.spec)


def moment(time: str | None) -> datetime:
    assert time is not None, "only what has happened has a time"
    return datetime.fromisoformat(time)


def _hash(spec: TrainingJobSpec, *, aside: set[str]) -> str:
    matters = {name: value for name, value in msgspec.to_builtins(spec).items() if name not in aside}
    return hashlib.sha256(msgspec.json.encode(matters, order="sorted")).hexdigest()[:16]


def _streak(status: TrainingJobStatus, wanted: str) -> int:
    """How many attempts in a row came to a bad end before they were healthy, and the last one in any case."""
    streak = 0
    for attempt in reversed(status.attempts):
        if attempt.cause not in _MISHAPS or (streak and _was_healthy(attempt)):
            break
        if attempt.spec_hash not in {"", wanted}:
            break
        streak += 1
        if _was_healthy(attempt):
            break
    return streak


def _was_healthy(attempt: Attempt) -> bool:
    if attempt.run_time is None or attempt.end_time is None:
        return False
    return moment(attempt.end_time) - moment(attempt.run_time) >= HEALTHY


def _signature(failure: Failure | None) -> tuple[str, int | None, int | None] | None:
    return None if failure is None else (failure.role, failure.index, failure.exit_code)


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:_LONGEST_LINE] if lines else ""
