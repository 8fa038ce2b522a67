"""Events of a running attempt. Pure: the status shows which ones were recorded before."""

from __future__ import annotations

from skysail.base.names import Event, Reason
from skysail.core.actions import Note
from skysail.kinds.training.api.training_job import Failure
from skysail.kinds.training.plan import attempts, failure
from skysail.kinds.training.snapshot import Run, Snapshot


def news(snapshot: Snapshot, run: Run, wrong: str) -> tuple[Note, ...]:
    """Return the events. `wrong` is the validation error of the current spec."""
    job = snapshot.object
    is_known = job.status.observed_generation == job.metadata.generation
    unfit = (Note(Reason.INVALID_SPEC, wrong, warning=True),) if wrong and not is_known else ()
    return (
        *_begun(snapshot, run),
        *unfit,
        *(Note(Event.WORKER_FAILED, failure.sentence(each), warning=True) for each in fallen(snapshot, run)),
    )


def fallen(snapshot: Snapshot, run: Run) -> list[Failure]:
    """Return failures of individually restarted pods after the one in `status.failure`."""
    failed, told = failure.alone(snapshot.object.spec, run), snapshot.object.status.failure
    names = [each.pod for each in failed]
    return failed[names.index(told.pod) + 1 :] if told is not None and told.pod in names else failed


def _begun(snapshot: Snapshot, run: Run) -> tuple[Note, ...]:
    """Return the events of a new attempt. Its Jobs may have been created a while before."""
    if attempts.recorded(snapshot.object.status, run.number) is not None:
        return ()
    created = Note(Event.WORKERS_CREATED, f"Created {snapshot.object.spec.workers} worker pods")
    return (created, *_lost(snapshot))


def _lost(snapshot: Snapshot) -> tuple[Note, ...]:
    newest = snapshot.object.status.checkpoint
    if newest is None or not snapshot.has_lost_checkpoint:
        return ()
    message = f"Checkpoint {newest.path} was deleted with its PVC. Training starts from the beginning."
    return (Note(Event.CHECKPOINT_LOST, message, warning=True),)
