"""BentoML with its own batching."""

from __future__ import annotations

import os

import bentoml
import numpy as np
import torch


@bentoml.service(workers=1, logging={"access": {"enabled": False}})
class Network:
    def __init__(self) -> None:
        self.model = torch.jit.load(f"{os.environ['MODEL_FOLDER']}/model.pt")

    @bentoml.api(batchable=True, batch_dim=0, max_batch_size=512, max_latency_ms=60_000)
    def predict(self, features: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return self.model(torch.from_numpy(np.asarray(features, np.float32))).numpy()
