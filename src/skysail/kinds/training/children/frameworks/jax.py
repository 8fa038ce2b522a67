"""JAX: address of the coordinator, number of processes, and index of this process.

`jax.distributed.initialize` reads the address itself; the program passes the two numbers.
"""

from __future__ import annotations

from skysail.kinds.training.children.frameworks.base import (
    OWN_INDEX,
    Framework,
    Variables,
    World,
    gang_of_workers,
    ranks,
)
from skysail.kinds.training.children.replica_groups import Group

_PORT = 29500


def environment(world: World, group: Group) -> Variables:
    if group.role != "worker":
        return {}
    found = ranks(world, group, _PORT) | {
        "JAX_COORDINATOR_ADDRESS": f"{world.master}:{_PORT}",
        "JAX_NUM_PROCESSES": str(group.replicas),
        "JAX_PROCESS_ID": OWN_INDEX,
    }
    if group.replicas > 1 and not group.gpus:
        # Older versions have no CPU collectives unless an implementation is named.
        found["JAX_CPU_COLLECTIVES_IMPLEMENTATION"] = "gloo"
    return found


JAX = Framework(port=_PORT, environment=environment, scope=gang_of_workers)
