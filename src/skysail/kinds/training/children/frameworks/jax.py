"""JAX: where the coordinator is, how many processes there are, and which of them this is.

`jax.distributed.initialize` reads the address by itself; the program hands it the two numbers.
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
        # Older versions have no way between processes without GPUs until one is named.
        found["JAX_CPU_COLLECTIVES_IMPLEMENTATION"] = "gloo"
    return found


JAX = Framework(port=_PORT, environment=environment, scope=gang_of_workers)
