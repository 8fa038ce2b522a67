"""Stall detection: a training that reported before and is silent for too long. Pure.

A training that never reported cannot stall, because most programs never report.
"""

from __future__ import annotations

import msgspec

from skysail.base.names import Condition as Type
from skysail.base.names import Reason
from skysail.kinds.training.api.training_job import TrainingJobStatus
from skysail.kinds.training.plan import attempts, status
from skysail.kinds.training.snapshot import Snapshot


def listened(snapshot: Snapshot, known: TrainingJobStatus) -> tuple[TrainingJobStatus, float | None]:
    """Return the status with or without the condition Stalled, and the seconds until the training counts as stalled."""
    reported = known.progress.last_updated_time if known.progress else None
    began = known.attempts[-1].run_time
    if reported is None or began is None:
        return broken(known), None
    silent = snapshot.now - max(attempts.moment(reported), attempts.moment(began))
    left = (snapshot.terms.stall - silent).total_seconds()
    if left > 0:
        return broken(known), left
    message = (
        f"The training has not reported for {snapshot.terms.stall.total_seconds():.0f} s; its last report was at "
        f"{reported}. Check the logs of its pods, and delete a hanging pod to start a new attempt."
    )
    return status.told(snapshot, known, Type.STALLED, "True", Reason.STALLED, message), None


def broken(known: TrainingJobStatus) -> TrainingJobStatus:
    """Remove the condition Stalled, after a report or after the end of the attempt."""
    left = tuple(row for row in known.conditions if row.type != Type.STALLED)
    return msgspec.structs.replace(known, conditions=left) if len(left) < len(known.conditions) else known
