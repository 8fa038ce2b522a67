"""XGBoost: rank 0 is the tracker, too."""
# ruff: noqa: T201 (what it prints is what the test reads)

import json
import os
import threading
from pathlib import Path

import numpy as np
from xgboost import collective
from xgboost.tracker import RabitTracker

rank, address, port = int(os.environ["DMLC_TASK_ID"]), os.environ["POD_IP"], int(os.environ["DMLC_TRACKER_PORT"])
mine = json.loads(Path("/code/numbers.json").read_text())[rank]
if rank == 0:
    tracker = RabitTracker(n_workers=int(os.environ["DMLC_NUM_WORKER"]), host_ip=address, port=port, sortby="task")
    tracker.start()
    threading.Thread(target=tracker.wait_for, daemon=True).start()
with collective.CommunicatorContext(
    dmlc_tracker_uri=os.environ["DMLC_TRACKER_URI"],
    dmlc_tracker_port=port,
    dmlc_task_id=str(rank),
    dmlc_retry=20,
    dmlc_timeout=120,
):
    total = collective.allreduce(np.array(mine, dtype=np.float64), collective.Op.SUM)
    print(json.dumps({"rank": collective.get_rank(), "address": address, "sum": total.tolist()}))
