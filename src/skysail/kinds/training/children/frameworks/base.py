"""Interface of a framework, and the view of an attempt that it renders. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from skysail.kinds.training.api.training_job import TrainingJobSpec
from skysail.kinds.training.children import naming
from skysail.kinds.training.children.replica_groups import ReplicaGroup, RoleName, max_pods, replica_groups

# `gang`: a failed pod restarts all pods. `index`: it restarts alone.
RestartScope = Literal["gang", "index"]
Variables = dict[str, str]

# Index of the pod in its role. First in the environment, because variables can refer only to earlier ones.
INDEX_VARIABLE = "JOB_COMPLETION_INDEX"
OWN_INDEX = f"$({INDEX_VARIABLE})"
ALONE = "localhost"


class WorldInfo(msgspec.Struct, frozen=True):
    """Pods of one attempt and their host names."""

    name: str
    spec: TrainingJobSpec
    number: int

    def has(self, role: RoleName) -> bool:
        return any(replica_group.role == role for replica_group in replica_groups(self.spec))

    @property
    def is_single_pod(self) -> bool:
        """Return whether the job never has more than one pod, and so needs no Service."""
        return max_pods(self.spec) == 1

    @property
    def master(self) -> str:
        """Return the host of worker 0."""
        return ALONE if self.is_single_pod else self.host("worker", 0)

    def host(self, role: RoleName, index: int) -> str:
        """Return the host name of a pod, which stays when the pod is replaced."""
        return f"{naming.job(self.name, role, self.number)}-{index}.{naming.service(self.name)}"

    def hosts(self, role: RoleName) -> tuple[str, ...]:
        return tuple(
            self.host(role, index)
            for replica_group in replica_groups(self.spec)
            if replica_group.role == role
            for index in range(replica_group.replicas)
        )


class Framework(msgspec.Struct, frozen=True, kw_only=True):
    """Framework: `environment` renders the variables of a role, `restart_scope` is its restart scope."""

    port: int
    environment: Callable[[WorldInfo, ReplicaGroup], Variables]
    restart_scope: Callable[[TrainingJobSpec, RoleName], RestartScope]


def gang_of_workers(_: TrainingJobSpec, role: RoleName) -> RestartScope:
    """Return the restart scope of ranks that wait for each other.

    An evaluator only reads checkpoints, so it restarts alone.
    """
    return "index" if role == "evaluator" else "gang"


def ranks(world: WorldInfo, replica_group: ReplicaGroup, port: int) -> Variables:
    """Return the variables that workers of every framework get."""
    if replica_group.role != "worker":
        return {}
    return {
        "MASTER_ADDR": world.master,
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(world.spec.workers),
        "RANK": OWN_INDEX,
    }
