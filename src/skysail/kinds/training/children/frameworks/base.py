"""What a framework is told of an attempt, and what each framework answers for. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from skysail.kinds.training.api.training_job import TrainingJobSpec
from skysail.kinds.training.children import naming
from skysail.kinds.training.children.replica_groups import Group, RoleName, groups, largest

# `gang`: when one pod fails, all begin anew. `index`: the failed pod alone does.
Scope = Literal["gang", "index"]
Variables = dict[str, str]

# The variable that tells a pod its place in its group. The environment begins with it, so that others can use it.
INDEX_VARIABLE = "JOB_COMPLETION_INDEX"
OWN_INDEX = f"$({INDEX_VARIABLE})"
ALONE = "localhost"


class World(msgspec.Struct, frozen=True):
    """The pods of one attempt, as they see each other."""

    name: str
    spec: TrainingJobSpec
    number: int

    def has(self, role: RoleName) -> bool:
        return any(group.role == role for group in groups(self.spec))

    @property
    def is_alone(self) -> bool:
        """Whether there is never more than one pod. It needs no name that others could find it by."""
        return largest(self.spec) == 1

    @property
    def master(self) -> str:
        """Where worker 0 is."""
        return ALONE if self.is_alone else self.host("worker", 0)

    def host(self, role: RoleName, index: int) -> str:
        """The name of a pod, which stays when the pod is replaced."""
        return f"{naming.job(self.name, role, self.number)}-{index}.{naming.service(self.name)}"

    def hosts(self, role: RoleName) -> tuple[str, ...]:
        return tuple(
            self.host(role, index)
            for group in groups(self.spec)
            if group.role == role
            for index in range(group.replicas)
        )


class Framework(msgspec.Struct, frozen=True, kw_only=True):
    """`environment` is of one group's pods; `scope` tells what begins anew when a pod of a role fails."""

    port: int
    environment: Callable[[World, Group], Variables]
    scope: Callable[[TrainingJobSpec, RoleName], Scope]


def gang_of_workers(_: TrainingJobSpec, role: RoleName) -> Scope:
    """Ranks wait for each other, so that none can be replaced; an evaluator only reads what they have saved."""
    return "index" if role == "evaluator" else "gang"


def ranks(world: World, group: Group, port: int) -> Variables:
    """What every worker is told, whatever its framework."""
    if group.role != "worker":
        return {}
    return {
        "MASTER_ADDR": world.master,
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(world.spec.workers),
        "RANK": OWN_INDEX,
    }
