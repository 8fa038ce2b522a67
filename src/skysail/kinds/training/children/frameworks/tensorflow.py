"""TensorFlow: `TF_CONFIG` with all tasks of the cluster and the task of this pod."""

from __future__ import annotations

import msgspec

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
from skysail.kinds.training.children.replica_groups import ReplicaGroup, RoleName

_PORT = 2222
# The evaluator is a task, but not part of the cluster, so that no task waits for it.
_CLUSTER: tuple[RoleName, ...] = ("chief", "worker", "ps")


def environment(world: WorldInfo, replica_group: ReplicaGroup) -> Variables:
    found = ranks(world, replica_group, _PORT)
    if not world.is_single_pod:
        found["TF_CONFIG"] = _config(world, replica_group)
    if world.has("ps"):
        # Without this the coordinator waits for ever for a failed task.
        found["GRPC_FAIL_FAST"] = "use_caller"
    return found


def _config(world: WorldInfo, replica_group: ReplicaGroup) -> str:
    """Return `TF_CONFIG`. The kubelet substitutes the index of the pod as a JSON number."""
    cluster = {role: [f"{host}:{_PORT}" for host in world.hosts(role)] for role in _CLUSTER if world.has(role)}
    text = msgspec.json.encode(cluster).decode()
    return f'{{"cluster":{text},"task":{{"type":"{replica_group.role}","index":{OWN_INDEX}}}}}'


def scope(spec: TrainingJobSpec, role: RoleName) -> RestartScope:
    """Return the restart scope. With parameter servers, the chief continues while a worker is replaced."""
    replica_roles = spec.roles
    is_asynchronous = (
        replica_roles is not None and replica_roles.chief is not None and replica_roles.parameter_servers is not None
    )
    return "index" if is_asynchronous and role == "worker" else gang_of_workers(spec, role)


TENSORFLOW = Framework(port=_PORT, environment=environment, restart_scope=scope)
