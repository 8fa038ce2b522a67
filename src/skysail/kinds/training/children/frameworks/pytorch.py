"""PyTorch: `env://` variables for a plain program, `PET_*` variables for torchrun.

A `PET_` variable replaces the torchrun flag of that name; a flag on the command line wins. Gloo and NCCL need no
settings: the host name of a pod resolves to the interface that its peers reach.
"""

from __future__ import annotations

from skysail.kinds.training.api.training_job import TrainingJobSpec
from skysail.kinds.training.children.frameworks.base import (
    OWN_INDEX,
    Framework,
    RestartScope,
    Variables,
    WorldInfo,
    gang_of_workers,
    ranks,
)
from skysail.kinds.training.children.replica_groups import ReplicaGroup, RoleName, is_elastic

_PORT = 29500


def environment(world: WorldInfo, replica_group: ReplicaGroup) -> Variables:
    if replica_group.role != "worker":
        return {}
    per_node = {"PET_NPROC_PER_NODE": str(max(1, replica_group.gpus))}
    return per_node | (_elastic(world) if is_elastic(world.spec) else _static(world, replica_group))


def _static(world: WorldInfo, replica_group: ReplicaGroup) -> Variables:
    return ranks(world, replica_group, _PORT) | {
        "PET_MASTER_ADDR": world.master,
        "PET_MASTER_PORT": str(_PORT),
        "PET_NNODES": str(world.spec.workers),
        "PET_NODE_RANK": OWN_INDEX,
    }


def _elastic(world: WorldInfo) -> Variables:
    """Return variables that do not depend on the number of workers. The rendezvous assigns the ranks."""
    spec = world.spec
    assert spec.elastic is not None
    return {
        "PET_NNODES": f"{spec.elastic.min}:{spec.elastic.max}",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": f"{world.master}:{_PORT}",
        "PET_RDZV_ID": f"{world.name}-{world.number}",
        # A lost peer makes the programs of all workers fail: without restarts all workers would end.
        "PET_MAX_RESTARTS": str(spec.run_policy.backoff_limit if spec.restart_policy == "OnFailure" else 0),
    }


def scope(spec: TrainingJobSpec, role: RoleName) -> RestartScope:
    """Return the restart scope.

    Elastic workers restart alone, except worker 0: the planner ends the attempt with it.
    """
    return "index" if is_elastic(spec) else gang_of_workers(spec, role)


PYTORCH = Framework(port=_PORT, environment=environment, restart_scope=scope)
