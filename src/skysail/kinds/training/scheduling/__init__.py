"""Gang schedulers, which start all pods of an attempt or none: Kueue and Volcano."""

from __future__ import annotations

from collections.abc import Mapping

from skysail.kinds.training.api.training_job import TrainingJobSpec
from skysail.kinds.training.scheduling.gang_scheduler import GangScheduler
from skysail.kinds.training.scheduling.kueue import Kueue
from skysail.kinds.training.scheduling.volcano import Volcano

SCHEDULERS: Mapping[str, GangScheduler] = {"kueue": Kueue(), "volcano": Volcano()}


def for_spec(spec: TrainingJobSpec) -> GangScheduler | None:
    """The one that the job asks for."""
    return SCHEDULERS.get(spec.scheduling.gang) if spec.scheduling else None
