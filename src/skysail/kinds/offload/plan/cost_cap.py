"""Cap on the cost of a pod's launches, from the annotations of its owners. Pure.

All pods that an object makes for the same work share its cap: those of each attempt of a TrainingJob, and those that
replace each other in a PyTorchJob. So a failure does not renew the money. Each pod of a server has a cap of its own,
because a rollout starts the new pod beside the old one, whose reservation may take the whole cap.
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
# Kinds whose pods run side by side without an end.
_SERVERS = frozenset(
    {
        "ReplicaSet",
        "Deployment",
        "StatefulSet",
        "LeaderWorkerSet",
        "Revision",
        "Configuration",
        "Service",
        "InferenceService",
        "ModelDeployment",
        "MLModel",
        "ModalEndpoint",
        "ModalFunction",
    }
)


def cost_cap(owners: Sequence[Owner]) -> CostCap:
    """Return the cap of these owners, nearest first. Raises `Rejected` if an annotation of one is malformed."""
    uid, is_one_run, caps = "", True, []
    for owner in owners:
        is_one_run = is_one_run and owner.kind not in _REPEATING | _SERVERS
        uid = owner.uid if is_one_run and owner.uid else uid
        caps.append(_cap(owner))
    return CostCap(min((cap for cap in caps if cap is not None), default=None), uid)


def pods_share_cap(owners: Sequence[Owner]) -> bool:
    """Return whether all pods of the nearest owner share one cap."""
    return not owners or owners[0].kind not in _SERVERS


def _cap(owner: Owner) -> float | None:
    reader = AnnotationReader(owner.annotations, {})
    cap = reader.dollars(Annotation.MAX_COST)
    if reader.errors:
        raise Rejected(Reason.INVALID_ANNOTATIONS, f"{owner.kind} {owner.name}: {' '.join(reader.errors)}")
    return cap
