"""Gangs: pods that can only work together, because they reach each other by name. Pure.

One rank at a cloud cannot reach the others in the cluster, so a gang goes to one cloud as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from skysail.base.names import Label
from skysail.claims.gangs import GangRef
from skysail.cloud.account import GpuRequest
from skysail.cloud.provider import ResourceLimits
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
_INDEX = "batch.kubernetes.io/job-completion-index"
_JOB_UID = "batch.kubernetes.io/controller-uid"
_JOB_SET = "jobset.sigs.k8s.io/jobset-name"
_REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
_JOB_INDEX = "jobset.sigs.k8s.io/job-index"
_TRAINING_JOB = "training.kubeflow.org/job-name"
_REPLICA_TYPE = "training.kubeflow.org/replica-type"
_REPLICA_INDEX = "training.kubeflow.org/replica-index"
# Order of ranks by replica type, as the training operator counts them.
_REPLICA_TYPES = ("master", "chief", "worker", "ps", "evaluator")


class MemberGroup(msgspec.Struct, frozen=True):
    """Equal pods of an owner, in the order of ranks: `jobs` Jobs with `pods` pods each."""

    name: str = ""
    jobs: int = 1
    pods: int = 1

    @property
    def size(self) -> int:
        return self.jobs * self.pods


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """One owner of a pod. `groups`: the pods that run together for it, None if its kind has no gangs.

    `has_ranks`: each pod has a known rank. `ends_together`: see `GangRef`.
    """

    kind: str
    name: str
    uid: str = ""
    api_version: str = ""
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    groups: tuple[MemberGroup, ...] | None = None
    has_ranks: bool = False
    ends_together: bool = False

    @property
    def members(self) -> int | None:
        return None if self.groups is None else sum(group.size for group in self.groups)


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Image and machine that a pod asks for at a cloud: the same for all ranks of a gang."""

    image: str = ""
    gpus: GpuRequest | None = None
    gpu_memory: int = 0
    size: ResourceLimits = ResourceLimits()
    regions: tuple[str, ...] = ()
    cloud_types: tuple[str, ...] = ()
    cuda_versions: tuple[str, ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    is_cheapest: bool = False


class Sibling(msgspec.Struct, frozen=True, kw_only=True):
    """Another pod of the same gang that has not finished. `node`: its node, or the one that its selector names.

    `machine`: what it asks for, None if that is unknown.
    """

    name: str = ""
    node: str = ""
    is_unschedulable: bool = False
    machine: Machine | None = None


def gang(pod: Pod, owners: Sequence[Owner]) -> str:
    """Return a phrase for the gang of the pod, such as `PyTorchJob mnist`, or an empty string."""
    if Label.TRAINING_JOB_UID in pod.labels:
        is_gang = bool(pod.spec.get("subdomain"))
        return f"TrainingJob {pod.labels.get(Label.TRAINING_JOB, '')}".strip() if is_gang else ""
    large = _large_owners(pod, owners)
    if large:
        return f"{large[-1].kind} {large[-1].name}"
    sized = [owner for owner in owners if owner.members is not None]
    # An owner that has one pod only is no gang, whatever the labels say.
    if any(owner.kind != "Job" for owner in sized) or {pod.annotations.get(_TOTAL), pod.annotations.get(_LWS_SIZE)} & {
        "1"
    }:
        return ""
    known = {**pod.annotations, **pod.labels}
    return next((f"{kind} {known[name]}" for name, kind in _GROUPS.items() if name in known), "")


def gang_ref(pod: Pod, owners: Sequence[Owner]) -> GangRef | None:
    """Return the gang and the rank of the pod. Returns None if there is no gang, or if the rank is not known."""
    if not gang(pod, owners):
        return None
    if gang_ref_is_ambiguous(owners):
        return None
    for owner in reversed(_large_owners(pod, owners)):
        rank = _rank(owner, pod) if owner.has_ranks and owner.uid else None
        if rank is not None:
            return GangRef(
                api_version=owner.api_version,
                kind=owner.kind,
                name=owner.name,
                uid=owner.uid,
                size=owner.members or 0,
                rank=rank,
                ends_together=owner.ends_together and Label.TRAINING_JOB_UID not in pod.labels,
            )
    return None


def planned_ref(pod: Pod, owners: Sequence[Owner]) -> GangRef | None:
    """Return the gang of a pod that does not exist yet, as its rank 0."""
    large = [owner for owner in _large_owners(pod, owners) if owner.has_ranks]
    if not large or gang_ref_is_ambiguous(owners):
        return None
    owner = large[-1]
    return GangRef(
        api_version=owner.api_version, kind=owner.kind, name=owner.name, uid="", size=owner.members or 0, rank=0
    )


def gang_ref_is_ambiguous(owners: Sequence[Owner]) -> bool:
    """Return whether the roles of a TrainingJob are Jobs of their own, whose indexes are not the ranks of the whole."""
    return any(owner.kind == "TrainingJob" and len(owner.groups or ()) > 1 for owner in owners)


def sibling_selector(ref: GangRef) -> str:
    """Return the label selector of all pods of a gang in its namespace."""
    match ref.kind:
        case "Job":
            return f"{_JOB_UID}={ref.uid}"
        case "JobSet":
            return f"{_JOB_SET}={ref.name}"
        case _:
            return f"{_TRAINING_JOB}={ref.name}"


def member_groups(kind: str, spec: Manifest) -> tuple[MemberGroup, ...] | None:
    """Return the pods that run together for an owner of this kind, or None if the kind has no gangs."""
    match kind:
        case "Job":
            is_indexed = spec.get("completionMode") == "Indexed"
            return (MemberGroup(pods=_number(spec.get("parallelism"))),) if is_indexed else None
        case "JobSet":
            return tuple(
                MemberGroup(str(row.get("name", "")), _number(row.get("replicas")), _of_template(row))
                for row in spec.get("replicatedJobs") or ()
            )
        case "LeaderWorkerSet":
            return (MemberGroup(pods=_number((spec.get("leaderWorkerTemplate") or {}).get("size"))),)
        case "TrainJob":
            return (MemberGroup(pods=_number((spec.get("trainer") or {}).get("numNodes"))),)
        case "TrainingJob":
            return (MemberGroup("workers", pods=_number(spec.get("workers"))), *_roles(spec.get("roles") or {}))
        case _:
            return _replica_specs(spec) if kind.endswith("Job") else None


def _roles(roles: Manifest) -> list[MemberGroup]:
    rows = [(name, row) for name, row in sorted(roles.items()) if row is not None]
    return [MemberGroup(name, pods=_number(row.get("replicas"))) for name, row in rows]


def _replica_specs(spec: Manifest) -> tuple[MemberGroup, ...] | None:
    """Return the groups of a job of the training operator, or None if the spec has no such field."""
    replicas = next((value for name, value in sorted(spec.items()) if name.endswith("ReplicaSpecs")), None)
    if not isinstance(replicas, dict):
        return None
    groups = [MemberGroup(name.casefold(), pods=_number((row or {}).get("replicas"))) for name, row in replicas.items()]
    return tuple(sorted(groups, key=_order))


def has_ranks(kind: str, spec: Manifest) -> bool:
    """Return whether each pod of an owner of this kind has a rank among all of them.

    The launcher of an MPIJob starts its workers by `kubectl exec`, and a Job that depends on another one starts later.
    """
    if kind == "JobSet":
        return not any(row.get("dependsOn") for row in spec.get("replicatedJobs") or ())
    return kind in {"Job", "PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob"}


def ends_together(kind: str, spec: Manifest) -> bool:
    """Return whether the owner restarts failed ranks without those that have succeeded."""
    return kind == "Job" and not spec.get("successPolicy") and spec.get("backoffLimit") != 0


def _large_owners(pod: Pod, owners: Sequence[Owner]) -> list[Owner]:
    return [owner for owner in owners if (owner.members or 0) > 1 and _is_connected(owner, pod)]


def _rank(owner: Owner, pod: Pod) -> int | None:
    if owner.kind == "Job":
        rank = _position(pod, "", "", _INDEX, owner.groups or ())
    elif owner.kind == "JobSet":
        rank = _position(pod, pod.labels.get(_REPLICATED_JOB), _JOB_INDEX, _INDEX, owner.groups or ())
    else:
        rank = _position(pod, pod.labels.get(_REPLICA_TYPE), "", _REPLICA_INDEX, owner.groups or ())
    return rank if rank is not None and 0 <= rank < (owner.members or 0) else None


def _position(pod: Pod, group: str | None, job_label: str, pod_label: str, groups: Sequence[MemberGroup]) -> int | None:
    """Return the position of the pod among all groups. Returns None if a label is missing or malformed."""
    known = {**pod.annotations, **pod.labels}
    job, index = known.get(job_label, "") if job_label else "0", known.get(pod_label, "")
    if not (job.isdecimal() and index.isdecimal()):
        return None
    offset = 0
    for each in groups:
        if each.name == group:
            return offset + int(job) * each.pods + int(index)
        offset += each.size
    return None


def _order(group: MemberGroup) -> tuple[int, str]:
    known = _REPLICA_TYPES.index(group.name) if group.name in _REPLICA_TYPES else len(_REPLICA_TYPES)
    return known, group.name


def _is_connected(owner: Owner, pod: Pod) -> bool:
    """Return whether the pods know each other. Pods of an Indexed Job do so only by a subdomain."""
    return owner.kind != "Job" or bool(pod.spec.get("subdomain"))


def _of_template(replicated_job: Manifest) -> int:
    return _number(((replicated_job.get("template") or {}).get("spec") or {}).get("parallelism"))


def _number(value: Any) -> int:
    """Return the number of a field that is 1 by default."""
    return value if isinstance(value, int) and not isinstance(value, bool) else 1
