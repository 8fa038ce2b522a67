"""JAX: address of the coordinator, number of processes, and index of this process.

`jax.distributed.initialize` reads the address itself; the program passes the two numbers.
"""

from __future__ import annotations

from skysail.kinds.training.children.frameworks.base import (
    OWN_INDEX,
    Framework,
    Variables,
    WorldInfo,
    gang_of_workers,
    ranks,
)
from skysail.kinds.training.children.replica_groups import ReplicaGroup

_PORT = 29500


def environment(world: WorldInfo, replica_group: ReplicaGroup) -> Variables:
    if replica_group.role != "worker":
        return {}
    found = ranks(world, replica_group, _PORT) | {
        "JAX_COORDINATOR_ADDRESS": f"{world.master}:{_PORT}",
        "JAX_NUM_PROCESSES": str(replica_group.replicas),
        "JAX_PROCESS_ID": OWN_INDEX,
    }
    if replica_group.replicas > 1 and not replica_group.gpus:
        # Older versions have no CPU collectives unless an implementation is named.
        found["JAX_CPU_COLLECTIVES_IMPLEMENTATION"] = "gloo"
    return found


JAX = Framework(port=_PORT, environment=environment, restart_scope=gang_of_workers)
