"""Interface of a framework, and the view of an attempt that it renders. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from skysail.kinds.training.api.training_job import TrainingJobSpec
from skysail.kinds.training.children import naming
from skysail.kinds.training.children.replica_groups import Group, RoleName, groups, largest

# `gang`: a failed pod restarts all pods. `index`: it restarts alone.
Scope = Literal["gang", "index"]
Variables = dict[str, str]

# Index of the pod in its role. First in the environment, because variables can refer only to earlier ones.
INDEX_VARIABLE = "JOB_COMPLETION_INDEX"
OWN_INDEX = f"$({INDEX_VARIABLE})"
ALONE = "localhost"


class World(msgspec.Struct, frozen=True):
    """Pods of one attempt and their host names."""

    name: str
    spec: TrainingJobSpec
    number: int

    def has(self, role: RoleName) -> bool:
        return any(group.role == role for group in groups(self.spec))

    @property
    def is_alone(self) -> bool:
        """Return whether the job never has more than one pod, and so needs no Service."""
        return largest(self.spec) == 1

    @property
    def master(self) -> str:
        """Return the host of worker 0."""
        return ALONE if self.is_alone else self.host("worker", 0)

    def host(self, role: RoleName, index: int) -> str:
        """Return the host name of a pod, which stays when the pod is replaced."""
        return f"{naming.job(self.name, role, self.number)}-{index}.{naming.service(self.name)}"

    def hosts(self, role: RoleName) -> tuple[str, ...]:
        return tuple(
            self.host(role, index)
            for group in groups(self.spec)
            if group.role == role
            for index in range(group.replicas)
        )


class Framework(msgspec.Struct, frozen=True, kw_only=True):
    """Framework: `environment` renders the variables of a role, `scope` is its restart scope."""

    port: int
    environment: Callable[[World, Group], Variables]
    scope: Callable[[TrainingJobSpec, RoleName], Scope]


def gang_of_workers(_: TrainingJobSpec, role: RoleName) -> Scope:
    """Return the restart scope of ranks that wait for each other.

    An evaluator only reads checkpoints, so it restarts alone.
    """
    return "index" if role == "evaluator" else "gang"


def ranks(world: World, group: Group, port: int) -> Variables:
    """Return the variables that workers of every framework get."""
    if group.role != "worker":
        return {}
    return {
        "MASTER_ADDR": world.master,
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(world.spec.workers),
        "RANK": OWN_INDEX,
    }
