"""Manifests of `skysail serve`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from skysail.kinds.serving.api.types import MODEL_DEPLOYMENT
from skysail.kinds.serving.children import fetch_container

MOUNT = "/upload"
CONTAINER = "upload"
_MAX_NAME = 50
_GIBIBYTE = 1 << 30
# The server downloads a copy; the volume holds this version and the one before it.
_VERSIONS = 3
_UPLOAD_SECONDS = 6 * 3600
_TORCH = {"pt", "pth", "pt2", "safetensors", "ckpt", "bin"}
_ONNX_IMAGE = "localhost/fastapi-onnx:dev"
_SUFFIXES = re.compile(r"\.(onnx|pt|pth|pt2|safetensors|ckpt|zip|tar|tar\.gz|tgz)$", re.IGNORECASE)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Wishes of the user about a model."""

    name: str
    namespace: str
    uri: str
    version: str
    runtime: str = "fastapi-pytorch"
    image: str = ""
    replicas: int = 1
    cpu: str = "250m"
    memory: str = "512Mi"


def model_deployment(settings: Settings) -> dict[str, Any]:
    resource = MODEL_DEPLOYMENT.resource
    amounts = {"cpu": settings.cpu, "memory": settings.memory}
    spec: dict[str, Any] = {
        "modelURI": settings.uri,
        "runtime": settings.runtime,
        "version": settings.version,
        "resources": {"requests": amounts},
        "autoscale": False,
        "minReplicas": settings.replicas,
    }
    if settings.image:
        spec["runtimeImage"] = settings.image
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": settings.name, "namespace": settings.namespace},
        "spec": spec,
    }


def pvc_name(model: str) -> str:
    return f"{model}-upload"


def pvc(model: str, namespace: str, size: int) -> dict[str, Any]:
    gibibytes = -(-size * _VERSIONS // _GIBIBYTE) or 1
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": pvc_name(model), "namespace": namespace},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": f"{gibibytes}Gi"}},
        },
    }


def upload_pod(model: str, namespace: str, image: str, suffix: str) -> dict[str, Any]:
    """Return the pod that receives the files. It ends by itself if it is forgotten."""
    container = {
        "name": CONTAINER,
        "image": image,
        "command": ["sleep", str(_UPLOAD_SECONDS)],
        "volumeMounts": [{"name": "model", "mountPath": MOUNT}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    user = fetch_container.USER  # reads the files later
    security = {"runAsNonRoot": True, "runAsUser": user, "runAsGroup": user, "fsGroup": user}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{pvc_name(model)}-{suffix}", "namespace": namespace},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "activeDeadlineSeconds": _UPLOAD_SECONDS,
            "automountServiceAccountToken": False,
            "securityContext": {**security, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
            "volumes": [{"name": "model", "persistentVolumeClaim": {"claimName": pvc_name(model)}}],
        },
    }


def model_name(source: str) -> str:
    """Return a valid name of an object for the last part of a path or an address."""
    last = _SUFFIXES.sub("", source.rstrip("/").rpartition("/")[2].partition("?")[0].partition("@")[0])
    name = re.sub(r"[^a-z0-9]+", "-", last.lower()).strip("-")[:_MAX_NAME].strip("-")
    return name if name and name[0].isalpha() else f"model-{name}".strip("-")


def runtime_image(names: Iterable[str]) -> str:
    """Return the image of the small server for ONNX, by the names of the model's files. Empty: the runtime's own."""
    suffixes = {name.lower().rpartition(".")[2] for name in names}
    return _ONNX_IMAGE if "onnx" in suffixes and not suffixes & _TORCH else ""
