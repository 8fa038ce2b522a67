"""The servers that a model can run in: one row for each. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Literal

import msgspec

Layout = Literal["file", "onnx", "tensorflow", "triton", "torchserve"]

# Where a server finds the model; also the value of MODEL_PATH.
MODELS = "/mnt/models"
_NAME = "{name}"
# Where each layout puts the model itself; else it is all of the folder.
_PLACES = {"tensorflow": f"{MODELS}/{_NAME}", "torchserve": f"{MODELS}/{_NAME}.mar"}
_KERAS = (".h5", ".hdf5", ".keras")
_TORCH = (".pt", ".pth", ".pt2", ".safetensors", ".ckpt")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One server. `{name}` in arguments and paths stands for the model's name.

    In arguments `{model}` is the path of the model, `{folder}` and `{file}` are the two parts of it.

    `ready` answers 200 only once the model is loaded. `live` is empty where only the port tells whether it lives.
    `predict` is where the model is asked; `rows` is the field of a request that holds its rows, where it has one;
    `infer` is where it is asked by the Open Inference Protocol, where that is another place.
    `metrics` is (port, path), `stats` where it tells how often it was asked of late. Files that end with one of
    `unloadable` cannot be served, and `instead` is the fix. `warning` is a sentence for whoever chooses it.
    `drains`: told to end, it still answers until every node knows.
    """

    image: str
    layout: Layout
    port: int
    ready: str
    predict: str
    rows: str = ""
    infer: str = ""
    args: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    container: str = "inference"
    grpc: int | None = None
    live: str = ""
    metrics: tuple[int, str] | None = None
    stats: str = ""
    unloadable: tuple[str, ...] = ()
    instead: str = ""
    warning: str = ""
    drains: bool = False

    def is_asked_like(self, other: Row) -> bool:
        """Whether one server can stand in for the other: only what they load may differ."""
        return (self.port, self.ready, self.live, self.args) == (other.port, other.ready, other.live, other.args)

    def arguments(self, name: str, path: str = "") -> list[str]:
        """`path` is where the model is, if not where its layout puts it."""
        model = path or _PLACES.get(self.layout, MODELS).replace(_NAME, name)
        folder, file = posixpath.split(model)
        return [argument.format(name=name, model=model, folder=folder, file=file) for argument in self.args]

    def ready_path(self, name: str) -> str:
        return self.ready.replace(_NAME, name)

    def predict_path(self, name: str) -> str:
        return self.predict.replace(_NAME, name)

    def infer_path(self, name: str) -> str:
        return (self.infer or self.predict).replace(_NAME, name)


def _fastapi(image: str, layout: Layout, unloadable: tuple[str, ...], instead: str) -> Row:
    return Row(
        image=image,
        layout=layout,
        port=8000,
        # So that nobody sets another one, at which it is not asked.
        environment={"PORT": "8000"},
        ready="/v2/models/{name}/ready",
        predict="/predict",
        rows="features",
        infer="/v2/models/{name}/infer",
        live="/v2/health/live",
        metrics=(8000, "/metrics"),
        stats="/stats",
        unloadable=(*_KERAS, ".mar", ".pkl", ".joblib", ".tflite", *unloadable),
        instead=instead,
        drains=True,
    )


ROWS: Mapping[str, Row] = {
    "fastapi-onnx": _fastapi(
        "localhost/fastapi-onnx:dev", "onnx", _TORCH, "export the model to ONNX, or choose the framework that loads it"
    ),
    "fastapi-pytorch": _fastapi(
        "localhost/fastapi-pytorch:dev",
        "file",
        (),
        "export the model to ONNX or TorchScript, or choose the runtime that loads it",
    ),
    "tensorflow": Row(
        image="tensorflow/serving:latest",
        layout="tensorflow",
        port=8501,
        grpc=8500,
        # The path without /metadata answers 200 also for a model that could not be loaded.
        ready="/v1/models/{name}/metadata",
        predict="/v1/models/{name}:predict",
        rows="instances",
        args=("--rest_api_port=8501", "--model_name={name}", "--model_base_path={model}"),
        # The image's own script makes arguments of it, which come before ours and count less.
        environment={"MODEL_BASE_PATH": MODELS},
        container="tf-serving",
        unloadable=(*_KERAS, *_TORCH, ".onnx", ".mar", ".tflite"),
        instead="export the model as a SavedModel, and give the address of its folder or of an archive of it",
    ),
    "torchserve": Row(
        image="pytorch/torchserve:latest",
        layout="torchserve",
        port=8080,
        grpc=7070,
        ready="/ping",
        predict="/predictions/{name}",
        args=(
            "torchserve",
            "--start",
            "--foreground",
            "--ncs",
            # Else each request needs a token from a file in the container. Who may reach it is the cluster's to say.
            "--disable-token-auth",
            "--model-store={folder}",
            "--models={name}={file}",
        ),
        metrics=(8082, "/metrics"),
        unloadable=(*_KERAS, *_TORCH, ".onnx"),
        instead="pack the model into a .mar with torch-model-archiver",
        warning="TorchServe is no longer maintained and gets no security fixes: plan to move to triton or "
        "fastapi-pytorch.",
    ),
    "triton": Row(
        image="nvcr.io/nvidia/tritonserver:latest",
        layout="triton",
        port=8000,
        grpc=8001,
        # Of all models of the repository, which may have names of its own.
        ready="/v2/health/ready",
        predict="/v2/models/{name}/infer",
        live="/v2/health/live",
        args=("tritonserver", "--model-repository={model}", "--strict-readiness=true"),
        metrics=(8002, "/metrics"),
        unloadable=(*_KERAS, ".mar", ".safetensors", ".ckpt", ".tflite"),
        instead="give the address of a model repository, of an ONNX file or of a TensorRT plan",
    ),
}
# Frameworks that an MLModel may name, and the runtime that serves their models.
FRAMEWORKS: Mapping[str, str] = {
    "onnx": "fastapi-onnx",
    "pytorch": "fastapi-pytorch",
    "tensorflow": "tensorflow",
    "torchserve": "torchserve",
    "triton": "triton",
}


def of_framework(framework: str) -> str:
    """The runtime's name; the framework's own where nothing serves its models."""
    plain = framework.strip().lower()
    return FRAMEWORKS.get(plain, plain)
