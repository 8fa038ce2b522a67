"""XGBoost: address of the tracker, which worker 0 starts, and task of this worker.

XGBoost does not read these variables itself: the program passes them to `RabitTracker` and `CommunicatorContext`.
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
    return ranks(world, replica_group, _PORT) | {
        "DMLC_TRACKER_URI": world.master,
        "DMLC_TRACKER_PORT": str(_PORT),
        "DMLC_TASK_ID": OWN_INDEX,
        # One process per GPU.
        "DMLC_NUM_WORKER": str(replica_group.replicas * max(1, replica_group.gpus)),
    }


XGBOOST = Framework(port=_PORT, environment=environment, restart_scope=gang_of_workers)
