"""Requirements of a pod on its cloud, besides the container configs: GPUs, lifetime, grace period. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from skysail.base.names import Annotation
from skysail.claims.provider import CloudRequirements
from skysail.cloud.account import GpuRequest
from skysail.kube.api import quantities
from skysail.kube.api.objects import OwnerReference
from skysail.node.pod_types import Pod
from skysail.node.sync.unsupported_fields import UnsupportedFields

_GPU = "nvidia.com/gpu"
_INDEX = "batch.kubernetes.io/job-completion-index"
_DEFAULT_GRACE = 30
_MAX_GPUS = 1024
_CLOUDS = ("modal-operator.io/", "runpod.io/")
# Annotations that choose the cloud have no effect here, because the pod is already bound to a node.
_SUPPORTED = {
    Annotation.MODAL_GPU,
    Annotation.MODAL_GPU_TYPE,
    Annotation.MODAL_TIMEOUT,
    Annotation.MODAL_OFFLOAD,
    Annotation.MODAL_USE,
    Annotation.RUNPOD_OFFLOAD,
    Annotation.RUNPOD_MANAGED,
    Annotation.RUNPOD_MAX_PRICE,
}


def requirements(pod: Pod) -> CloudRequirements:
    spec = pod.spec
    grace = spec.termination_grace_period_seconds
    return CloudRequirements(
        gpus=_gpus(pod),
        seconds=_seconds(pod),
        grace=float(_DEFAULT_GRACE if grace is None else grace),
        work=work_key(pod),
        job=owner.uid if (owner := _job(pod)) else "",
    )


def work_key(pod: Pod) -> str:
    """Return the key of work that only one pod may do at a time: one index of an Indexed Job.

    Returns an empty string for other pods.
    """
    owner = _job(pod)
    index = (pod.metadata.annotations or {}).get(_INDEX)
    return f"{owner.uid}/{index}" if owner and index is not None else ""


def _job(pod: Pod) -> OwnerReference | None:
    owner = pod.metadata.controller
    return owner if owner and owner.kind == "Job" else None


def unsupported(pod: Pod) -> UnsupportedFields:
    """Return annotations that are invalid or not supported. Rejects those whose neglect could cost more money."""
    annotations = pod.metadata.annotations or {}
    rejected = [*_invalid_gpus(pod), *_invalid_timeout(pod)]
    if Annotation.RUNPOD_MAX_PRICE in annotations:
        rejected.append(
            _annotation_message(Annotation.RUNPOD_MAX_PRICE, "prices are not compared; remove it to run at any price.")
        )
    ignored = sorted(name for name in annotations if name.startswith(_CLOUDS) and name not in _SUPPORTED)
    messages = (
        [_annotation_message(", ".join(ignored), "this node ignores them; the pod's own fields apply.")]
        if ignored
        else []
    )
    return UnsupportedFields(tuple(rejected), tuple(messages))


def _invalid_gpus(pod: Pod) -> Iterator[str]:
    text, limit = _annotation(pod, Annotation.MODAL_GPU), _limit(pod)
    kind, colon, number = text.partition(":")
    if text and not (kind and (not colon or (_is_count(number) and int(number) <= _MAX_GPUS))):
        yield _annotation_message(
            Annotation.MODAL_GPU, f"`{text}` is not a type with a number of GPUs, such as `H100:2`."
        )
    elif colon and limit and int(number) != limit:
        yield _annotation_message(
            Annotation.MODAL_GPU, f"`{text}` contradicts the containers' limits of {limit}: make them equal."
        )


def _invalid_timeout(pod: Pod) -> Iterator[str]:
    text = _annotation(pod, Annotation.MODAL_TIMEOUT)
    if text and not _is_count(text):
        yield _annotation_message(Annotation.MODAL_TIMEOUT, f"`{text}` is not a number of seconds.")


def _annotation_message(name: str, problem: str) -> str:
    return f"metadata.annotations[{name}]: {problem}"


def _seconds(pod: Pod) -> float | None:
    timeout = _annotation(pod, Annotation.MODAL_TIMEOUT)
    limits = (pod.spec.active_deadline_seconds, int(timeout) if _is_count(timeout) else None)
    return min((float(limit) for limit in limits if limit is not None), default=None)


def _gpus(pod: Pod) -> GpuRequest | None:
    kind, _, number = _annotation(pod, Annotation.MODAL_GPU).partition(":")
    kind = kind or _annotation(pod, Annotation.MODAL_GPU_TYPE)
    count = _limit(pod) or (int(number) if _is_count(number) else 0)
    return GpuRequest(kind, count or 1) if kind or count else None


def _limit(pod: Pod) -> int:
    return sum(int(quantities.parse(container.resources.limits.get(_GPU, 0))) for container in pod.spec.containers)


def _annotation(pod: Pod, name: Annotation) -> str:
    return (pod.metadata.annotations or {}).get(name, "")


def _is_count(text: str) -> bool:
    return re.fullmatch("[1-9][0-9]*", text, re.ASCII) is not None
