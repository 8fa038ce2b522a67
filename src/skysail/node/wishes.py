"""What a pod asks of a cloud beyond what its containers say. Pure."""

from __future__ import annotations

from skysail.base.names import Annotation
from skysail.claims.provider import Wishes
from skysail.cloud.instances import Gpus
from skysail.kube.objects import OwnerReference
from skysail.node import quantities
from skysail.node.manifest import Pod

_GPU = "nvidia.com/gpu"
_INDEX = "batch.kubernetes.io/job-completion-index"
_DEFAULT_GRACE = 30


def wishes(pod: Pod) -> Wishes:
    spec = pod.spec
    grace = spec.termination_grace_period_seconds
    return Wishes(
        gpus=_gpus(pod),
        seconds=None if spec.active_deadline_seconds is None else float(spec.active_deadline_seconds),
        grace=float(_DEFAULT_GRACE if grace is None else grace),
        work=work(pod),
        job=owner.uid if (owner := _job(pod)) else "",
    )


def work(pod: Pod) -> str:
    """One index of an Indexed Job is done by one pod at a time; other pods of a controller stand for themselves."""
    owner = _job(pod)
    index = (pod.metadata.annotations or {}).get(_INDEX)
    return f"{owner.uid}/{index}" if owner and index is not None else ""


def _job(pod: Pod) -> OwnerReference | None:
    owner = pod.metadata.controller
    return owner if owner and owner.kind == "Job" else None


def _gpus(pod: Pod) -> Gpus | None:
    count = sum(int(quantities.parse(c.resources.limits.get(_GPU, 0))) for c in pod.spec.containers)
    asked = (pod.metadata.annotations or {}).get(Annotation.MODAL_GPU, "")
    kind, _, number = asked.partition(":")
    kind = kind or (pod.metadata.annotations or {}).get(Annotation.MODAL_GPU_TYPE, "")
    if number.isdigit():
        count = count or int(number)
    return Gpus(kind, count or 1) if kind or count else None
