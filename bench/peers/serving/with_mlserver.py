"""MLServer with its own batching."""

from __future__ import annotations

import os

import torch
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Network(MLModel):
    async def load(self) -> bool:
        self.model = torch.jit.load(f"{os.environ['MODEL_FOLDER']}/model.pt")
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        rows = NumpyCodec.decode_input(payload.inputs[0])
        with torch.no_grad():
            scores = self.model(torch.from_numpy(rows)).numpy()
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("scores", scores)])
