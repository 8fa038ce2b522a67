"""Which pods a training job has: one group for each role. Pure.

The groups stand in the order of ranks: who coordinates comes first. The job has succeeded when its decisive group has;
the others would go on for ever, and are ended then.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from skysail.kinds.training.api.training_job import Role, TrainingJobSpec
from skysail.kube.api.fields import ResourceRequirements

RoleName = Literal["worker", "chief", "ps", "evaluator"]

GPU = "nvidia.com/gpu"
_COORDINATOR = 0
_AS_A_WORKER = Role()


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Pods of one role, which are all alike.

    `is_decisive`: its success is the job's, and the others are ended with it: they do not end by themselves, or need
    not. `winner` is the one pod that speaks for the group; None means all of them.
    """

    role: RoleName
    replicas: int
    image: str
    command: tuple[str, ...]
    args: tuple[str, ...]
    resources: ResourceRequirements
    gpus: int
    is_decisive: bool = False
    winner: int | None = None


def groups(spec: TrainingJobSpec) -> tuple[Group, ...]:
    """Every group of the job, in the order of ranks."""
    roles = spec.roles
    if roles is None:
        return (_workers(spec),)
    found: list[Group] = []
    if roles.chief is not None:
        found.append(_group(spec, "chief", roles.chief, is_decisive=True))
    found.append(_workers(spec))
    if roles.parameter_servers is not None:
        found.append(_group(spec, "ps", roles.parameter_servers, replicas=roles.parameter_servers.replicas))
    if roles.evaluator is not None:
        found.append(_group(spec, "evaluator", roles.evaluator))
    return tuple(found)


def largest(spec: TrainingJobSpec) -> int:
    """The most pods that the job may have without being rendered anew."""
    beside = sum(group.replicas for group in groups(spec) if group.role != "worker")
    return beside + (spec.elastic.max if spec.elastic and is_elastic(spec) else spec.workers)


def fewest(spec: TrainingJobSpec, group: Group) -> int:
    """With how many pods of the group the training begins."""
    return spec.elastic.min if spec.elastic and group.role == "worker" and is_elastic(spec) else group.replicas


def is_elastic(spec: TrainingJobSpec) -> bool:
    """Whether the number of workers changes in place. Only torchrun lets ranks come and go; Kueue admits a number."""
    is_counted = spec.scheduling is not None and spec.scheduling.gang == "kueue"
    return spec.elastic is not None and spec.framework == "pytorch" and not is_counted


def _workers(spec: TrainingJobSpec) -> Group:
    has_chief = spec.roles is not None and spec.roles.chief is not None
    alone_decides = spec.framework == "tensorflow" and not has_chief and spec.workers > 1
    return _group(
        spec,
        "worker",
        _AS_A_WORKER,
        replicas=spec.workers,
        is_decisive=not has_chief,
        winner=_COORDINATOR if alone_decides else None,
    )


def _group(
    spec: TrainingJobSpec,
    name: RoleName,
    role: Role,
    *,
    replicas: int = 1,
    is_decisive: bool = False,
    winner: int | None = None,
) -> Group:
    """What the role does not say is as for a worker; arguments belong to their command."""
    resources = role.resources or spec.resources or ResourceRequirements()
    shares_gpus = role.resources is None and name != "ps"
    if role.resources is None and name == "ps":
        resources = _without_gpus(resources)
    return Group(
        role=name,
        replicas=replicas,
        image=role.image or spec.image,
        command=role.command or spec.command,
        args=role.args if role.command or role.args else spec.args,
        resources=resources,
        gpus=(spec.gpu_per_worker if shares_gpus else 0) or _gpus(resources),
        is_decisive=is_decisive,
        winner=winner,
    )


def _without_gpus(resources: ResourceRequirements) -> ResourceRequirements:
    """Parameter servers only hold what the others compute."""
    limits, requests = (
        {name: amount for name, amount in amounts.items() if name != GPU}
        for amounts in (resources.limits, resources.requests)
    )
    return msgspec.structs.replace(resources, limits=limits, requests=requests)


def _gpus(resources: ResourceRequirements) -> int:
    """GPUs are whole; an amount that is not is left to the API server to refuse."""
    amount = str(resources.limits.get(GPU, resources.requests.get(GPU, 0)))
    return int(amount) if amount.isdecimal() else 0
