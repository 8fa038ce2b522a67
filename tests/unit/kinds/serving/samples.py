"""Models in few words, and what is made of them."""

from __future__ import annotations

from typing import Any

import msgspec

from skysail.base.settings import Settings
from skysail.kinds.serving.api.types import MLModel, ModelDeployment
from skysail.kinds.serving.spec import desired, revisions
from skysail.kinds.serving.spec.config import ServingConfig, serving_config
from skysail.kinds.serving.spec.desired import DesiredModel
from skysail.kinds.serving.spec.revisions import Revision

UID = "6f0f9a11-6f3c-4a57-9a53-0b8e2a614f1f"
DIGEST = "sha256:" + "ab" * 32
TERMS = serving_config(Settings())


def deployment(name: str = "iris", *, annotations: dict[str, str] | None = None, **spec: Any) -> ModelDeployment:
    """As the API server stores it."""
    wanted = {
        "modelURI": "https://models.example.com/iris.onnx",
        "runtime": "fastapi-pytorch",
        "resources": {"requests": {"cpu": "250m"}},
        "autoscale": False,
        "version": "v1",
        **spec,
    }
    return msgspec.convert({"metadata": metadata(name, annotations), "spec": wanted}, ModelDeployment)


def ml_model(name: str = "flowers", *, annotations: dict[str, str] | None = None, **spec: Any) -> MLModel:
    wanted = {
        "modelURL": "https://models.example.com/flowers.tar.gz",
        "storageSize": "5Gi",
        "framework": "tensorflow",
        "replicas": 1,
        "expose": True,
        **spec,
    }
    return msgspec.convert({"metadata": metadata(name, annotations), "spec": wanted}, MLModel)


def metadata(name: str, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    found = {"name": name, "namespace": "shop", "uid": UID, "generation": 1}
    return {**found, "annotations": annotations} if annotations else found


def told(**settings: Any) -> ServingConfig:
    return serving_config(Settings(**settings))


def serving(model: ModelDeployment | MLModel, config: ServingConfig = TERMS) -> DesiredModel:
    return desired.desired_model(model, config)


def entry(desired: DesiredModel, number: int = 1, digest: str = DIGEST) -> Revision:
    return msgspec.structs.replace(
        revisions.new_candidate(desired.want), number=number, digest=digest, bytes=10, files=1
    )
