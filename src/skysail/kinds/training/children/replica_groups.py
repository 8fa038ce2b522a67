"""Groups of pods of a TrainingJob: one per role. Pure.

Groups are in the order of ranks: the coordinator comes first. The job succeeds when its decisive group succeeds; the
other groups would run for ever and are terminated then.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from skysail.kinds.training.api.training_job import RoleSpec, TrainingJobSpec
from skysail.kube.api.fields import ResourceRequirements

RoleName = Literal["worker", "chief", "ps", "evaluator"]

GPU = "nvidia.com/gpu"
_COORDINATOR = 0
_AS_A_WORKER = RoleSpec()


class ReplicaGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Identical pods of one role.

    `decides_success`: the job succeeds with this group, and the other groups are terminated. `success_index`: index of
    the pod that decides for the group; None means all pods.
    """

    role: RoleName
    replicas: int
    image: str
    command: tuple[str, ...]
    args: tuple[str, ...]
    resources: ResourceRequirements
    gpus: int
    decides_success: bool = False
    success_index: int | None = None


def replica_groups(spec: TrainingJobSpec) -> tuple[ReplicaGroup, ...]:
    """Return all groups of the job in the order of ranks."""
    roles = spec.roles
    if roles is None:
        return (_workers(spec),)
    groups: list[ReplicaGroup] = []
    if roles.chief is not None:
        groups.append(_group(spec, "chief", roles.chief, decides_success=True))
    groups.append(_workers(spec))
    if roles.parameter_servers is not None:
        groups.append(_group(spec, "ps", roles.parameter_servers, replicas=roles.parameter_servers.replicas))
    if roles.evaluator is not None:
        groups.append(_group(spec, "evaluator", roles.evaluator))
    return tuple(groups)


def max_pods(spec: TrainingJobSpec) -> int:
    """Return the maximum number of pods of one attempt, including elastic growth."""
    others = sum(group.replicas for group in replica_groups(spec) if group.role != "worker")
    return others + (spec.elastic.max if spec.elastic and is_elastic(spec) else spec.workers)


def min_pods(spec: TrainingJobSpec, replica_group: ReplicaGroup) -> int:
    """Return the number of pods of the group with which the training starts."""
    return (
        spec.elastic.min
        if spec.elastic and replica_group.role == "worker" and is_elastic(spec)
        else replica_group.replicas
    )


def is_elastic(spec: TrainingJobSpec) -> bool:
    """Return whether the number of workers changes in place.

    Only torchrun supports that, and Kueue admits a fixed number.
    """
    is_counted = spec.scheduling is not None and spec.scheduling.gang == "kueue"
    return spec.elastic is not None and spec.framework == "pytorch" and not is_counted


def _workers(spec: TrainingJobSpec) -> ReplicaGroup:
    has_chief = spec.roles is not None and spec.roles.chief is not None
    alone_decides = spec.framework == "tensorflow" and not has_chief and spec.workers > 1
    return _group(
        spec,
        "worker",
        _AS_A_WORKER,
        replicas=spec.workers,
        decides_success=not has_chief,
        success_index=_COORDINATOR if alone_decides else None,
    )


def _group(
    spec: TrainingJobSpec,
    name: RoleName,
    role_spec: RoleSpec,
    *,
    replicas: int = 1,
    decides_success: bool = False,
    success_index: int | None = None,
) -> ReplicaGroup:
    """Return the group. Fields that the role does not set are those of a worker; `args` belong to `command`."""
    resources = role_spec.resources or spec.resources or ResourceRequirements()
    shares_gpus = role_spec.resources is None and name != "ps"
    if role_spec.resources is None and name == "ps":
        resources = _without_gpus(resources)
    return ReplicaGroup(
        role=name,
        replicas=replicas,
        image=role_spec.image or spec.image,
        command=role_spec.command or spec.command,
        args=role_spec.args if role_spec.command or role_spec.args else spec.args,
        resources=resources,
        gpus=(spec.gpu_per_worker if shares_gpus else 0) or _gpus(resources),
        decides_success=decides_success,
        success_index=success_index,
    )


def _without_gpus(resources: ResourceRequirements) -> ResourceRequirements:
    """Remove GPUs from the resources of parameter servers, which only store parameters."""
    limits, requests = (
        {name: amount for name, amount in amounts.items() if name != GPU}
        for amounts in (resources.limits, resources.requests)
    )
    return msgspec.structs.replace(resources, limits=limits, requests=requests)


def _gpus(resources: ResourceRequirements) -> int:
    """Return the number of GPUs. Returns 0 for a fraction, which the API server rejects."""
    amount = str(resources.limits.get(GPU, resources.requests.get(GPU, 0)))
    return int(amount) if amount.isdecimal() else 0
