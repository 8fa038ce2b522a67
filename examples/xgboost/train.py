# /// script
# dependencies = ["xgboost-cpu", "numpy", "scipy"]
# ///
"""Distributed training with XGBoost: worker 0 is the tracker, and each worker has its part of the rows."""

import os
import threading

import numpy as np
import xgboost
from xgboost import collective
from xgboost.tracker import RabitTracker


def rows(rank: int, count: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(rank)
    features = generator.uniform(-1, 1, (count, 4))
    return features, (features[:, 0] * features[:, 1] > 0).astype(float)


def main() -> None:
    # The DMLC_ variables come from the TrainingJob.
    rank, port = int(os.environ["DMLC_TASK_ID"]), int(os.environ["DMLC_TRACKER_PORT"])
    if rank == 0:
        workers = int(os.environ["DMLC_NUM_WORKER"])
        tracker = RabitTracker(n_workers=workers, host_ip=os.environ["POD_IP"], port=port, sortby="task")
        tracker.start()
        threading.Thread(target=tracker.wait_for, daemon=True).start()
    with collective.CommunicatorContext(
        dmlc_tracker_uri=os.environ["DMLC_TRACKER_URI"],
        dmlc_tracker_port=port,
        dmlc_task_id=str(rank),
        dmlc_retry=20,
    ):
        features, labels = rows(rank)
        data = xgboost.QuantileDMatrix(features, labels)
        history: dict[str, dict[str, list[float]]] = {}
        xgboost.train(
            {"objective": "binary:logistic", "eval_metric": "error", "max_depth": 4, "nthread": 1},
            data,
            num_boost_round=40,
            evals=[(data, "train")],
            evals_result=history,
            verbose_eval=False,
        )
        error = history["train"]["error"][-1]
        print(f"rank {collective.get_rank()} of {collective.get_world_size()}: error {error:.2f}", flush=True)


if __name__ == "__main__":
    main()
