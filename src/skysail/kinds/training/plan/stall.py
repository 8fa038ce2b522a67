"""Whether a training that reported has gone silent. Pure.

Only who reported once is expected to report again: most programs never do, and train well.
"""

from __future__ import annotations

import msgspec

from skysail.base.names import Condition as Type
from skysail.base.names import Reason
from skysail.kinds.training.api.training_job import TrainingJobStatus
from skysail.kinds.training.plan import attempts, status
from skysail.kinds.training.snapshot import Snapshot


def listened(snapshot: Snapshot, known: TrainingJobStatus) -> tuple[TrainingJobStatus, float | None]:
    """The status of a job whose attempt goes on, and in how many seconds its silence would be too long."""
    reported = known.progress.last_updated_time if known.progress else None
    began = known.attempts[-1].run_time
    if reported is None or began is None:
        return broken(known), None
    silent = snapshot.now - max(attempts.moment(reported), attempts.moment(began))
    left = (snapshot.terms.stall - silent).total_seconds()
    if left > 0:
        return broken(known), left
    message = (
        f"The training has reported nothing for {snapshot.terms.stall.total_seconds():.0f} s; its last report was at "
        f"{reported}. It may hang: "
        "look at the logs of its pods, and delete a pod that hangs to begin a new attempt."
    )
    return status.told(snapshot, known, Type.STALLED, "True", Reason.STALLED, message), None


def broken(known: TrainingJobStatus) -> TrainingJobStatus:
    """A silence that was told of is over: by a report, or because nobody is there any more who could report."""
    left = tuple(row for row in known.conditions if row.type != Type.STALLED)
    return msgspec.structs.replace(known, conditions=left) if len(left) < len(known.conditions) else known
