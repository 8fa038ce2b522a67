"""KServe's own server, with its first protocol, which it is faster with. It batches nothing by itself."""

from __future__ import annotations

import os
from typing import Any

import kserve
import torch


class Network(kserve.Model):
    def load(self) -> bool:
        self.model = torch.jit.load(f"{os.environ['MODEL_FOLDER']}/model.pt")
        self.ready = True
        return True

    def predict(self, payload: dict[str, Any], *_: Any, **__: Any) -> dict[str, Any]:
        with torch.no_grad():
            return {"predictions": self.model(torch.tensor(payload["instances"])).tolist()}


if __name__ == "__main__":
    network = Network("net")
    network.load()
    kserve.ModelServer(
        http_port=int(os.environ["PORT"]),
        enable_grpc=False,
        workers=1,
        access_log_format="",
        enable_latency_logging=False,
    ).start([network])
