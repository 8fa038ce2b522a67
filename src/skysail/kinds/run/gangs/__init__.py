"""Gang schedulers that start all pods of an attempt or none."""

from __future__ import annotations

from collections.abc import Mapping

from skysail.kinds.run.gangs.gang import Gang
from skysail.kinds.run.gangs.kueue import Kueue
from skysail.kinds.run.gangs.volcano import Volcano
from skysail.kinds.run.types import TrainingJobSpec

GANGS: Mapping[str, Gang] = {"kueue": Kueue(), "volcano": Volcano()}


def of(spec: TrainingJobSpec) -> Gang | None:
    """The one that the job asks for."""
    return GANGS.get(spec.scheduling.gang) if spec.scheduling else None
