"""The Model Operator's own commands, line by line, with a model that the test makes and a server that needs no PyTorch.

That its samples serve as they are, with PyTorch, is shown in tests/frameworks.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import urllib.request
from typing import TYPE_CHECKING

import numpy as np
import pytest

from skysail.local.control_plane.flags import Component
from tests.support.kubectl import Manifest, apply, get, ok
from tests.support.serving import condition, linear, model_deployment, offer, source, until_ready

if TYPE_CHECKING:
    from tests.support.cluster import Cluster

NAME = "dummy-model"

pytestmark = pytest.mark.usefixtures("operator")


def test_the_commands_of_the_model_operator(node: Cluster, namespace: str) -> None:
    weights = np.random.default_rng(secrets.randbits(32)).normal(size=(1, 3))
    offer(node, namespace, model_onnx=linear(weights))
    apply(node, namespace, model_deployment(NAME, source(namespace, "model.onnx")))
    until_ready(node, namespace, NAME, 1)

    header, row = ok(node, "get", "modeldeployments", "-n", namespace).splitlines()
    assert header.split() == ["NAME", "RUNTIME", "VERSION", "PHASE", "URL", "AGE"]
    url = f"http://{NAME}-service.{namespace}.svc:8000"
    assert row.split()[:-1] == [NAME, "fastapi-pytorch", "v1", "Ready", url]
    describe = ("describe", "modeldeployment", NAME, "-n", namespace)
    node.until(lambda: "Deployed" in ok(node, *describe), "the event")
    assert f"Name:                   {NAME}\n" in ok(node, "describe", "deployment", NAME, "-n", namespace)
    assert f"{NAME}-service" in ok(node, "describe", "service", NAME, "-n", namespace)
    pods = get(node, namespace, "pods", "-l", f"model={NAME},type=inference")["items"]
    assert len(pods) == 1

    rows = [[1.0], [2.0]]
    assert np.allclose(_asked(node, namespace, rows), np.array(rows) @ weights, atol=1e-6)
    ports = {
        name: get(node, namespace, "service", name)["spec"]["ports"][0]["port"]
        for name in (f"{NAME}-service", f"svc-{NAME}")
    }
    assert ports == {f"{NAME}-service": 8000, f"svc-{NAME}": 80}

    assert "deleted" in ok(node, "delete", "modeldeployment", NAME, "-n", namespace)
    node.until(lambda: _left(node, namespace) == "", "nothing of it to be left")


def test_a_model_that_cannot_be_fetched_is_told_with_its_host_and_step(node: Cluster, namespace: str) -> None:
    apply(node, namespace, model_deployment(NAME, "https://dummy.invalid/dummy_model.pt"))
    failed: list[Manifest] = []

    def has_failed() -> bool:
        """It is tried again soon, and then says that."""
        failed[:] = [get(node, namespace, "modeldeployment", NAME)]
        return "dummy.invalid" in failed[0].get("status", {}).get("message", "")

    node.until(has_failed, "a failure")
    (model,) = failed
    failure = model["status"]["failure"]
    assert (failure["step"], failure["reason"], failure["exitCode"]) == ("Download", "Unreachable", 75)
    assert "dummy.invalid" in failure["message"]
    assert condition(model, "Ready")["status"] == "False"


def test_what_is_wrong_is_refused_with_the_fix(node: Cluster, namespace: str) -> None:
    for uri, words in (
        ("http://169.254.169.254/latest/meta-data", "169.254.169.254"),
        ("http://127.0.0.1/model.pt", "127.0.0.1"),
        ("ftp://example.com/model.pt", "no supported scheme: use http://"),
    ):
        text = json.dumps(model_deployment("wrong", uri))
        done = node.kubectl("apply", "-n", namespace, "-f", "-", stdin=text)
        assert done.returncode != 0
        assert words in done.stderr


def _asked(node: Cluster, namespace: str, rows: list[list[float]]) -> list[list[float]]:
    """As the document says: a port-forward to the Service, and a POST to it."""
    kubectl = node.binaries.commands[Component.KUBECTL]
    command = [*kubectl, "port-forward", f"service/{NAME}-service", ":8000", "-n", namespace]
    with subprocess.Popen(
        command, env={**os.environ, "KUBECONFIG": str(node.kubeconfig)}, stdout=subprocess.PIPE, text=True
    ) as forward:
        try:
            assert forward.stdout is not None
            port = forward.stdout.readline().rpartition("127.0.0.1:")[2].split()[0]
            body, kind = json.dumps({"features": rows}).encode(), {"Content-Type": "application/json"}
            request = urllib.request.Request(f"http://127.0.0.1:{port}/predict", body, kind)
            with urllib.request.urlopen(request, timeout=240) as reply:
                return json.load(reply)["predictions"]
        finally:
            forward.terminate()


def _left(node: Cluster, namespace: str) -> str:
    found = ok(node, "get", "pods,jobs,deployments,services,hpa,controllerrevisions", "-n", namespace, "-o", "name")
    return "".join(line for line in found.splitlines() if line not in {"pod/files", "service/files"})
