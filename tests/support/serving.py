"""Models that tests make, a place in the cluster to fetch them from, and somebody who asks them all the time."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from onnx import TensorProto, helper, numpy_helper

from skysail.local.images.environments import open_environments
from tests.support.kubectl import Manifest, apply, get, ok, pod, until_condition

if TYPE_CHECKING:
    from tests.support.cluster import Cluster

IMAGE = "localhost/fastapi-onnx:dev"
RESOURCES = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}}
# Asks as often as it can keep up with, at most 50 times a second, and never stops at a failure: it is written down.
ASKS = """
import json, sys, time, urllib.error, urllib.request
url, body, seen, count = sys.argv[1], sys.argv[2].encode(), None, 0
print(json.dumps({"begins": True}), flush=True)
begin = time.monotonic()
while True:
    time.sleep(max(0, begin + count / 50 - time.monotonic()))
    count += 1
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:
            answer = reply.read().decode()
    except urllib.error.HTTPError as error:
        answer = f"failed: {error.code} {error.read().decode()}"
    except OSError as error:
        answer = f"failed: {error}"
    if answer != seen or count % 50 == 0:
        print(json.dumps({"count": count, "answer": answer}), flush=True)
        seen = answer
"""


def build_images(node: Cluster, *images: str) -> None:
    """Build the environments of images here. A cluster without an egress proxy reaches no package index."""
    _, environments = open_environments(node.home.root, os.environ)
    for image in images:
        assert asyncio.run(environments.find(image, lambda _: None)) is not None


class Told(msgspec.Struct):
    """What one who asks has written down: each answer that differs from the one before, and every fiftieth."""

    count: int = 0
    answer: str = ""


def linear(weights: np.ndarray) -> bytes:
    """A model that multiplies each row by this matrix."""
    rows, columns = weights.shape
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["features", "weights"], ["predictions"])],
        "linear",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["rows", rows])],
        [helper.make_tensor_value_info("predictions", TensorProto.FLOAT, ["rows", columns])],
        [numpy_helper.from_array(weights.astype(np.float32), "weights")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def offer(node: Cluster, namespace: str, **files: bytes) -> None:
    """Serve these files at http://files.NAMESPACE.svc:8080/NAME, and later ones at the same place.

    A name stands for itself with its last underscore as a dot.
    """
    content = {name.rpartition("_")[0] + "." + name.rpartition("_")[2]: data for name, data in files.items()}
    encoded = {name: base64.b64encode(data).decode() for name, data in content.items()}
    apply(
        node,
        namespace,
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "files"}, "binaryData": encoded},
        _files_pod(),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "files"},
            "spec": {"selector": {"app": "files"}, "ports": [{"port": 8080}]},
        },
    )
    until_condition(node, namespace, "pod/files", "Ready")


def source(namespace: str, file: str) -> str:
    return f"http://files.{namespace}.svc:8080/{file}"


def model_deployment(name: str, uri: str, **spec: Any) -> Manifest:
    wanted = {
        "modelURI": uri,
        "runtime": "fastapi-pytorch",
        "runtimeImage": IMAGE,
        "resources": RESOURCES,
        "autoscale": False,
        "version": "v1",
        **spec,
    }
    return {"apiVersion": "mlops.sathvik.dev/v1", "kind": "ModelDeployment", "metadata": {"name": name}, "spec": wanted}


def ask_on(node: Cluster, namespace: str, url: str, question: Any) -> None:
    """Begin to ask; `told` says what came of it."""
    asks = pod("asks", "python3", "-c", ASKS, url, json.dumps(question), container={"image": "python:3"})
    apply(node, namespace, asks)
    until_condition(node, namespace, "pod/asks", "Ready")


def told(node: Cluster, namespace: str) -> list[Told]:
    # The last line may be written right now.
    lines = ok(node, "logs", "asks", "-n", namespace).rpartition("\n")[0].splitlines()
    return [msgspec.json.decode(line, type=Told) for line in lines][1:]


def until_ready(node: Cluster, namespace: str, name: str, revision: int, kind: str = "modeldeployment") -> Manifest:
    """Until this revision is served by all of its servers."""

    def is_served() -> bool:
        model = get(node, namespace, kind, name)
        shown = model.get("status", {})
        is_current = shown.get("observedGeneration") == model["metadata"]["generation"]
        return is_current and (shown.get("phase"), shown.get("revision")) == ("Ready", revision)

    node.until(is_served, f"revision {revision} of {name} to be served")
    return get(node, namespace, kind, name)


def condition(model: Manifest, type_: str) -> Manifest:
    return next((row for row in model["status"]["conditions"] if row["type"] == type_), {})


def _files_pod() -> Manifest:
    serves = pod(
        "files",
        "python3",
        "-m",
        "http.server",
        "8080",
        "--directory",
        "/files",
        container={
            "image": "python:3",
            "volumeMounts": [{"name": "files", "mountPath": "/files"}],
            "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
        },
        volumes=[{"name": "files", "configMap": {"name": "files"}}],
    )
    serves["metadata"]["labels"] = {"app": "files"}
    return serves
