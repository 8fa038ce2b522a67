"""Gangs: pods that can only work together, because they reach each other by name. Pure.

One rank at a cloud cannot reach the others in the cluster, so no pod of a gang is placed alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from skysail.base.names import Label
from skysail.kinds.offload.objects import Pod

Manifest = dict[str, Any]

# Labels and annotations that name the group of a pod, by scheduler or controller.
_GROUPS = {
    "scheduling.x-k8s.io/pod-group": "PodGroup",
    "pod-group.scheduling.sigs.k8s.io": "PodGroup",
    "pod-group.scheduling.sigs.k8s.io/name": "PodGroup",
    "scheduling.k8s.io/group-name": "PodGroup",
    "scheduling.volcano.sh/group-name": "PodGroup",
    "kueue.x-k8s.io/pod-group-name": "pod group",
    "leaderworkerset.sigs.k8s.io/name": "LeaderWorkerSet",
    "jobset.sigs.k8s.io/jobset-name": "JobSet",
    "training.kubeflow.org/job-name": "training job",
}
_TOTAL = "kueue.x-k8s.io/pod-group-total-count"
_LWS_SIZE = "leaderworkerset.sigs.k8s.io/size"


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """One owner of a pod. `members`: number of pods that run together for it, None if its kind has no such number."""

    kind: str
    name: str
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    members: int | None = None


def gang(pod: Pod, owners: Sequence[Owner]) -> str:
    """Return a phrase for the gang of the pod, such as `PyTorchJob mnist`, or an empty string."""
    if Label.TRAINING_JOB_UID in pod.labels:
        return f"TrainingJob {pod.labels.get(Label.TRAINING_JOB, '')}".strip()
    sized = [owner for owner in owners if owner.members is not None]
    large = [owner for owner in sized if (owner.members or 0) > 1 and _is_connected(owner, pod)]
    if large:
        return f"{large[-1].kind} {large[-1].name}"
    # An owner that has one pod only is no gang, whatever the labels say.
    if any(owner.kind != "Job" for owner in sized) or {pod.annotations.get(_TOTAL), pod.annotations.get(_LWS_SIZE)} & {
        "1"
    }:
        return ""
    known = {**pod.annotations, **pod.labels}
    return next((f"{kind} {known[name]}" for name, kind in _GROUPS.items() if name in known), "")


def members(kind: str, spec: Manifest) -> int | None:
    """Return the number of pods that run together for an owner of this kind, or None if the kind has no gangs."""
    match kind:
        case "Job":
            return _indexed(spec)
        case "JobSet":
            return sum(_number(row.get("replicas")) * _of_template(row) for row in spec.get("replicatedJobs") or ())
        case "LeaderWorkerSet":
            return _number((spec.get("leaderWorkerTemplate") or {}).get("size"))
        case "TrainJob":
            return _number((spec.get("trainer") or {}).get("numNodes"))
    replicas = next((value for name, value in sorted(spec.items()) if name.endswith("ReplicaSpecs")), None)
    if kind.endswith("Job") and isinstance(replicas, dict):
        return sum(_number((row or {}).get("replicas")) for row in replicas.values())
    return None


def _is_connected(owner: Owner, pod: Pod) -> bool:
    """Return whether the pods know each other. Pods of an Indexed Job do so only by a subdomain."""
    return owner.kind != "Job" or bool(pod.spec.get("subdomain"))


def _indexed(spec: Manifest) -> int | None:
    return _number(spec.get("parallelism")) if spec.get("completionMode") == "Indexed" else None


def _of_template(replicated_job: Manifest) -> int:
    return _number(((replicated_job.get("template") or {}).get("spec") or {}).get("parallelism"))


def _number(value: Any) -> int:
    """Return the number of a field that is 1 by default."""
    return value if isinstance(value, int) and not isinstance(value, bool) else 1
