"""XGBoost: address of the tracker, which worker 0 starts, and task of this worker.

XGBoost does not read these variables itself: the program passes them to `RabitTracker` and `CommunicatorContext`.
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
    return ranks(world, group, _PORT) | {
        "DMLC_TRACKER_URI": world.master,
        "DMLC_TRACKER_PORT": str(_PORT),
        "DMLC_TASK_ID": OWN_INDEX,
        # One process per GPU.
        "DMLC_NUM_WORKER": str(group.replicas * max(1, group.gpus)),
    }


XGBOOST = Framework(port=_PORT, environment=environment, scope=gang_of_workers)
