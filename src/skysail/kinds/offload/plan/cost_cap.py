"""Cap on the cost of a pod's launches, from the annotations of its owners. Pure.

All pods that an object makes for the same work share its cap: those of each attempt of a TrainingJob, and those that
replace each other in a PyTorchJob or a Deployment. So a failure does not renew the money.
"""

from __future__ import annotations

from collections.abc import Sequence

from skysail.base.names import Annotation, Reason
from skysail.claims.requirements.annotation_reader import AnnotationReader
from skysail.claims.requirements.cost_cap import CostCap
from skysail.cloud.errors import Rejected
from skysail.kinds.offload.plan.gangs import Owner

# Kinds that start the same work again and again. Each run has a cap of its own.
_REPEATING = frozenset({"CronJob", "Experiment"})


def cost_cap(owners: Sequence[Owner]) -> CostCap:
    """Return the cap of these owners, nearest first. Raises `Rejected` if an annotation of one is malformed."""
    uid, is_one_run, caps = "", True, []
    for owner in owners:
        is_one_run = is_one_run and owner.kind not in _REPEATING
        uid = owner.uid if is_one_run and owner.uid else uid
        caps.append(_cap(owner))
    return CostCap(min((cap for cap in caps if cap is not None), default=None), uid)


def _cap(owner: Owner) -> float | None:
    reader = AnnotationReader(owner.annotations, {})
    cap = reader.dollars(Annotation.MAX_COST)
    if reader.errors:
        raise Rejected(Reason.INVALID_ANNOTATIONS, f"{owner.kind} {owner.name}: {' '.join(reader.errors)}")
    return cap
