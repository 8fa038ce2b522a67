"""The app that most people write first, as FastAPI's own pages show it."""

from __future__ import annotations

import os

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()
model = torch.jit.load(f"{os.environ['MODEL_FOLDER']}/model.pt")


class Question(BaseModel):
    features: list[list[float]]


class Answer(BaseModel):
    predictions: list[list[float]]


@app.get("/ready")
def ready() -> dict[str, bool]:
    return {"ready": True}


@app.post("/predict")
def predict(question: Question) -> Answer:
    with torch.no_grad():
        return Answer(predictions=model(torch.tensor(question.features)).tolist())


if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ["PORT"]), loop="uvloop", http="httptools", access_log=False)
