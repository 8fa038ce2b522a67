"""Stall detection: a training that reported before and is silent for too long. Pure.

A training that never reported cannot stall, because most programs never report.
"""

from __future__ import annotations

import msgspec

from skysail.base.names import Condition as Type
from skysail.base.names import Reason
from skysail.core import conditions
from skysail.kinds.training.api.training_job import TrainingJobStatus
from skysail.kinds.training.plan import attempts
from skysail.kinds.training.snapshot import Snapshot


def check_stall(snapshot: Snapshot, current: TrainingJobStatus) -> tuple[TrainingJobStatus, float | None]:
    """Return the status with or without the condition Stalled, and the seconds until the training counts as stalled."""
    reported = current.progress.last_updated_time if current.progress else None
    began = current.attempts[-1].run_time
    if reported is None or began is None:
        return clear_stall(current), None
    silent = snapshot.now - max(attempts.parse_time(reported), attempts.parse_time(began))
    seconds_left = (snapshot.config.stall - silent).total_seconds()
    if seconds_left > 0:
        return clear_stall(current), seconds_left
    message = (
        f"The training has not reported for {snapshot.config.stall.total_seconds():.0f} s; its last report was at "
        f"{reported}. Check the logs of its pods, and delete a hanging pod to start a new attempt."
    )
    return conditions.set_condition(snapshot, current, Type.STALLED, "True", Reason.STALLED, message), None


def clear_stall(status: TrainingJobStatus) -> TrainingJobStatus:
    """Remove the condition Stalled, after a report or after the end of the attempt."""
    left = tuple(condition for condition in status.conditions if condition.type != Type.STALLED)
    return msgspec.structs.replace(status, conditions=left) if len(left) < len(status.conditions) else status
