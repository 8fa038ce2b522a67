"""TorchServe's handler, with its own batching."""

from __future__ import annotations

import json
from typing import Any

import torch


class Network:
    def initialize(self, context: Any) -> None:
        self.model = torch.jit.load(f"{context.system_properties['model_dir']}/model.pt")

    def handle(self, requests: list[dict[str, Any]], _: Any) -> list[dict[str, Any]]:
        bodies = [request.get("body") or request.get("data") for request in requests]
        read = [body if isinstance(body, dict) else json.loads(body) for body in bodies]
        inputs = [torch.tensor(body["features"]) for body in read]
        with torch.no_grad():
            output = self.model(torch.cat(inputs))
        return [{"predictions": part.tolist()} for part in output.split([len(each) for each in inputs])]
