"""Serving runtimes, one row each. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Literal

import msgspec

Layout = Literal["file", "onnx", "tensorflow", "triton", "torchserve"]

# Path of the model in the server container; also the value of MODEL_PATH.
MODELS = "/mnt/models"
_NAME = "{name}"
# Path of the model in each layout; the whole folder for the other layouts.
_PLACES = {"tensorflow": f"{MODELS}/{_NAME}", "torchserve": f"{MODELS}/{_NAME}.mar"}
_KERAS = (".h5", ".hdf5", ".keras")
_TORCH = (".pt", ".pth", ".pt2", ".safetensors", ".ckpt")


class ServingRuntime(msgspec.Struct, frozen=True, kw_only=True):
    """Serving runtime. `{name}` in arguments and paths stands for the model's name.

    In arguments `{model}` is the path of the model, `{folder}` and `{file}` are its two parts.

    - `ready`: path that answers 200 only once the model is loaded.
    - `live`: liveness path; empty if only the port shows liveness.
    - `predict`: path for predictions; `instances_field` is the request field that holds the rows, if there is one.
    - `infer`: path for the Open Inference Protocol, if it differs from `predict`.
    - `metrics`: (port, path); `stats`: path with recent request counts.
    - `program`: words before the arguments, where the image's entrypoint is not used.
    - `unsupported_suffixes`: file extensions that the runtime cannot serve; `hint` is the fix.
    - `warning`: sentence for users who choose the runtime.
    - `fetches`: whether the runtime's own image has the program that downloads models.
    - `drains`: whether the server keeps answering after SIGTERM until every node knows that it terminates.
    """

    image: str
    layout: Layout
    port: int
    ready: str
    predict: str
    instances_field: str = ""
    infer: str = ""
    args: tuple[str, ...] = ()
    program: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    container: str = "inference"
    grpc: int | None = None
    live: str = ""
    metrics: tuple[int, str] | None = None
    stats: str = ""
    unsupported_suffixes: tuple[str, ...] = ()
    hint: str = ""
    warning: str = ""
    fetches: bool = False
    drains: bool = False

    def is_compatible_with(self, other: ServingRuntime) -> bool:
        """Return whether the other runtime has the same interface, so that only the loadable models may differ."""
        return (self.port, self.ready, self.live, self.args) == (other.port, other.ready, other.live, other.args)

    def arguments(self, name: str, path: str = "") -> list[str]:
        """Return the container arguments. `path` overrides the path that the layout gives to the model."""
        model = path or _PLACES.get(self.layout, MODELS).replace(_NAME, name)
        folder, file = posixpath.split(model)
        return [argument.format(name=name, model=model, folder=folder, file=file) for argument in self.args]

    def ready_path(self, name: str) -> str:
        return self.ready.replace(_NAME, name)

    def predict_path(self, name: str) -> str:
        return self.predict.replace(_NAME, name)

    def infer_path(self, name: str) -> str:
        return (self.infer or self.predict).replace(_NAME, name)


def _fastapi(image: str, layout: Layout, unloadable: tuple[str, ...], instead: str) -> ServingRuntime:
    return ServingRuntime(
        image=image,
        layout=layout,
        port=8000,
        program=("python", "-m", "skysail.runtimes.model_server"),
        # Fix the port: probes and Services use this one.
        environment={"PORT": "8000"},
        ready="/v2/models/{name}/ready",
        predict="/predict",
        instances_field="features",
        infer="/v2/models/{name}/infer",
        live="/v2/health/live",
        metrics=(8000, "/metrics"),
        stats="/stats",
        unsupported_suffixes=(*_KERAS, ".mar", ".pkl", ".joblib", ".tflite", *unloadable),
        hint=instead,
        fetches=True,
        drains=True,
    )


RUNTIMES: Mapping[str, ServingRuntime] = {
    "fastapi-onnx": _fastapi(
        "localhost/fastapi-onnx:dev", "onnx", _TORCH, "export the model to ONNX, or set a framework that loads it"
    ),
    "fastapi-pytorch": _fastapi(
        "localhost/fastapi-pytorch:dev",
        "file",
        (),
        "export the model to ONNX or TorchScript, or set a runtime that loads it",
    ),
    "tensorflow": ServingRuntime(
        image="tensorflow/serving:latest",
        layout="tensorflow",
        port=8501,
        grpc=8500,
        # The path without /metadata also answers 200 for a model that failed to load.
        ready="/v1/models/{name}/metadata",
        predict="/v1/models/{name}:predict",
        instances_field="instances",
        program=("tensorflow_model_server",),
        args=("--rest_api_port=8501", "--model_name={name}", "--model_base_path={model}"),
        # The image's entrypoint turns this into arguments, which ours override.
        environment={"MODEL_BASE_PATH": MODELS},
        container="tf-serving",
        unsupported_suffixes=(*_KERAS, *_TORCH, ".onnx", ".mar", ".tflite"),
        hint="export the model as a SavedModel, and set the address of its folder or of an archive",
    ),
    "torchserve": ServingRuntime(
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
            # Otherwise each request needs a token from a file in the container; access control is left to the cluster.
            "--disable-token-auth",
            "--model-store={folder}",
            "--models={name}={file}",
        ),
        metrics=(8082, "/metrics"),
        unsupported_suffixes=(*_KERAS, *_TORCH, ".onnx"),
        hint="pack the model into a .mar with torch-model-archiver",
        warning="TorchServe is no longer maintained and gets no security fixes: move to triton or fastapi-pytorch.",
    ),
    "triton": ServingRuntime(
        image="nvcr.io/nvidia/tritonserver:latest",
        layout="triton",
        port=8000,
        grpc=8001,
        # Covers all models of the repository, whose names may differ from ours.
        ready="/v2/health/ready",
        predict="/v2/models/{name}/infer",
        live="/v2/health/live",
        args=("tritonserver", "--model-repository={model}", "--strict-readiness=true"),
        metrics=(8002, "/metrics"),
        unsupported_suffixes=(*_KERAS, ".mar", ".safetensors", ".ckpt", ".tflite"),
        hint="set the address of a model repository, an ONNX file or a TensorRT plan",
    ),
}
# Runtime for each framework of an MLModel.
FRAMEWORKS: Mapping[str, str] = {
    "onnx": "fastapi-onnx",
    "pytorch": "fastapi-pytorch",
    "tensorflow": "tensorflow",
    "torchserve": "torchserve",
    "triton": "triton",
}


def of_framework(framework: str) -> str:
    """Return the runtime of a framework, or the framework's own name if no runtime serves it."""
    plain = framework.strip().lower()
    return FRAMEWORKS.get(plain, plain)
