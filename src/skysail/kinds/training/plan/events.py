"""Events of a running attempt. Pure: the status shows which ones were recorded before."""

from __future__ import annotations

from skysail.base.names import EventReason, Reason
from skysail.core.actions import Event
from skysail.kinds.training.api.training_job import Failure
from skysail.kinds.training.plan import attempts, failure
from skysail.kinds.training.plan.field_names import field_names
from skysail.kinds.training.snapshot import AttemptState, Snapshot


def plan_events(snapshot: Snapshot, attempt: AttemptState, message: str) -> tuple[Event, ...]:
    """Return the events. `message` is the validation error of the current spec."""
    job = snapshot.object
    is_known = job.status.observed_generation == job.metadata.generation
    unfit = (Event(Reason.INVALID_SPEC, message, warning=True),) if message and not is_known else ()
    return (
        *_begun(snapshot, attempt),
        *unfit,
        *(
            Event(EventReason.WORKER_FAILED, failure.message(each, fields=field_names(job)), warning=True)
            for each in newly_failed(snapshot, attempt)
        ),
    )


def newly_failed(snapshot: Snapshot, attempt: AttemptState) -> list[Failure]:
    """Return failures of individually restarted pods after the one in `status.failure`."""
    failed, reported = failure.individually_restarted(snapshot.object.spec, attempt), snapshot.object.status.failure
    names = [each.pod for each in failed]
    return failed[names.index(reported.pod) + 1 :] if reported is not None and reported.pod in names else failed


def _begun(snapshot: Snapshot, attempt: AttemptState) -> tuple[Event, ...]:
    """Return the events of a new attempt. Its Jobs may have been created a while before."""
    if attempts.find(snapshot.object.status, attempt.number) is not None:
        return ()
    created = Event(EventReason.WORKERS_CREATED, f"Created {snapshot.object.spec.workers} worker pods")
    return (created, *_lost(snapshot))


def _lost(snapshot: Snapshot) -> tuple[Event, ...]:
    newest = snapshot.object.status.checkpoint
    if newest is None or not snapshot.has_lost_checkpoint:
        return ()
    message = f"Checkpoint {newest.path} was deleted with its PVC. Training starts from the beginning."
    return (Event(EventReason.CHECKPOINT_LOST, message, warning=True),)
