"""LitServe with its own batching."""

from __future__ import annotations

import os
from typing import Any

import litserve
import torch


class Network(litserve.LitAPI):
    def setup(self, _: str) -> None:
        self.model = torch.jit.load(f"{os.environ['MODEL_FOLDER']}/model.pt")

    def decode_request(self, request):  # LitServe reads annotations, and would take this one for FastAPI's
        return torch.tensor(request["features"])

    def batch(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        self.sizes = [len(each) for each in inputs]
        return torch.cat(inputs)

    def predict(self, rows: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.model(rows)

    def unbatch(self, output: torch.Tensor) -> list[torch.Tensor]:
        return list(output.split(self.sizes))

    def encode_response(self, output: torch.Tensor) -> dict[str, Any]:
        return {"predictions": output.tolist()}


if __name__ == "__main__":
    server = litserve.LitServer(Network(max_batch_size=16, batch_timeout=0.002), accelerator="cpu")
    server.run(port=int(os.environ["PORT"]), log_level="error", generate_client_file=False)
