"""TensorFlow: `TF_CONFIG` with all tasks of the cluster and the task of this pod."""

from __future__ import annotations

import msgspec

from skysail.kinds.training.api.training_job import TrainingJobSpec
from skysail.kinds.training.children.frameworks.base import (
    OWN_INDEX,
    Framework,
    Scope,
    Variables,
    World,
    gang_of_workers,
    ranks,
)
from skysail.kinds.training.children.replica_groups import Group, RoleName

_PORT = 2222
# The evaluator is a task, but not part of the cluster, so that no task waits for it.
_CLUSTER: tuple[RoleName, ...] = ("chief", "worker", "ps")


def environment(world: World, group: Group) -> Variables:
    found = ranks(world, group, _PORT)
    if not world.is_alone:
        found["TF_CONFIG"] = _config(world, group)
    if world.has("ps"):
        # Without this the coordinator waits for ever for a failed task.
        found["GRPC_FAIL_FAST"] = "use_caller"
    return found


def _config(world: World, group: Group) -> str:
    """Return `TF_CONFIG`. The kubelet substitutes the index of the pod as a JSON number."""
    cluster = {role: [f"{host}:{_PORT}" for host in world.hosts(role)] for role in _CLUSTER if world.has(role)}
    text = msgspec.json.encode(cluster).decode()
    return f'{{"cluster":{text},"task":{{"type":"{group.role}","index":{OWN_INDEX}}}}}'


def scope(spec: TrainingJobSpec, role: RoleName) -> Scope:
    """Return the restart scope. With parameter servers, the chief continues while a worker is replaced."""
    roles = spec.roles
    is_asynchronous = roles is not None and roles.chief is not None and roles.parameter_servers is not None
    return "index" if is_asynchronous and role == "worker" else gang_of_workers(spec, role)


TENSORFLOW = Framework(port=_PORT, environment=environment, scope=scope)
