"""Models whose servers run at a simulated cloud answer through their own Services, and updates fail no request."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from skysail.app import manifests
from skysail.base.settings import Settings
from tests.support.clouds import NODES, Books, claims, start_bridge, start_operator
from tests.support.kubectl import TIMEOUT, Manifest, apply, fresh_namespace, get, ok
from tests.support.serving import (
    IMAGE,
    RESOURCES,
    ask_on,
    build_images,
    condition,
    linear,
    model_deployment,
    offer,
    source,
    told,
    until_ready,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.cluster import Cluster

NAME = "m"
OFFLOAD = "skysail.dev/offload"
QUESTION = {"features": [[1.0]]}


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Cluster]:
    build_images(cluster, IMAGE, Settings().fetch_image)
    cluster.start_agent()
    start_operator(cluster, restart=True, env={"SKYSAIL_MIN_READY_SECONDS": "2"})
    start_bridge(cluster)
    cluster.until_asking()
    apply(cluster, "default", manifests.default_policy())
    yield cluster
    cluster.stop("bridge")
    cluster.end_operator()
    cluster.remove_agent()
    ok(cluster, "delete", "node", *NODES.values(), "--ignore-not-found")
    ok(cluster, "delete", "mutatingwebhookconfiguration", "skysail", "--ignore-not-found")


@pytest.fixture(scope="module")
def books(node: Cluster) -> Books:
    return Books(node)


@pytest.fixture
def namespace(node: Cluster, books: Books) -> Iterator[str]:
    """A namespace with two models to download, that multiply by 1 and by 2."""
    with fresh_namespace(node) as name:
        files = {f"m{number}_onnx": linear(np.array([[float(number)]])) for number in (1, 2)}
        offer(node, name, **files, page_onnx=b"<!DOCTYPE html>")
        yield name
        books.check()
        ok(node, "delete", "modeldeployments,mlmodels", "--all", "-n", name, TIMEOUT)
        ok(node, "delete", "pods", "--all", "-n", name, TIMEOUT)
        books.until_let_go(name)


def answers(node: Cluster, namespace: str) -> list[str]:
    """Each answer that differs from the one before."""
    found = [row.answer for row in told(node, namespace)]
    return [answer for before, answer in zip(["", *found], found, strict=False) if answer != before]


def of(number: int) -> str:
    return json.dumps({"predictions": [[float(number)]]}, separators=(",", ":"))


def until_answer(node: Cluster, namespace: str, number: int) -> None:
    node.until(lambda: answers(node, namespace)[-1:] == [of(number)], f"the answer {number}")


def servers(node: Cluster, namespace: str) -> list[Manifest]:
    found = get(node, namespace, "pods", "-l", "type=inference")["items"]
    return [row for row in found if "deletionTimestamp" not in row["metadata"]]


def places(node: Cluster, namespace: str) -> set[str]:
    return {row["spec"]["nodeName"] for row in servers(node, namespace)}


def deadlines(node: Cluster, namespace: str) -> list[str]:
    """When the claim of each server ends, as its annotation tells."""
    return [row["metadata"]["annotations"].get("skysail.dev/deadline", "") for row in servers(node, namespace)]


def test_model_deployment_at_a_cloud_is_updated_and_brought_back_under_traffic(node, namespace):
    model = model_deployment(NAME, source(namespace, "m1.onnx"))
    model["metadata"]["annotations"] = {OFFLOAD: "modal"}
    apply(node, namespace, model)
    until_ready(node, namespace, NAME, 1)
    assert places(node, namespace) == {NODES["modal"]}
    assert len(claims(node, namespace)) == 1
    ask_on(node, namespace, f"http://{NAME}-service:8000/predict", QUESTION)
    until_answer(node, namespace, 1)
    change = ("patch", "modeldeployment", NAME, "-n", namespace, "--type=merge", "-p")
    ok(node, *change, json.dumps({"spec": {"modelURI": source(namespace, "page.onnx"), "version": "v2"}}))
    node.until(
        lambda: condition(get(node, namespace, "modeldeployment", NAME), "UpdateFailed").get("status") == "True",
        "the failed update",
    )
    ok(node, *change, json.dumps({"spec": {"modelURI": source(namespace, "m2.onnx"), "version": "v3"}}))
    until_answer(node, namespace, 2)
    until_ready(node, namespace, NAME, 2)
    assert places(node, namespace) == {NODES["modal"]}
    # Without the annotation, a new revision of the same model is served in the cluster.
    ok(node, "annotate", "modeldeployment", NAME, f"{OFFLOAD}-", "-n", namespace)
    until_ready(node, namespace, NAME, 3)
    assert places(node, namespace) == {"local"}
    ok(node, *change, json.dumps({"spec": {"rollbackTo": 1}}))
    until_answer(node, namespace, 1)
    until_ready(node, namespace, NAME, 1)
    assert places(node, namespace) == {NODES["modal"]}
    assert not [answer for answer in answers(node, namespace) if answer.startswith("failed")]


def test_ml_model_with_its_pvc_in_the_cluster_moves_its_servers_to_a_cloud_and_back(node, namespace):
    spec = {"modelURL": source(namespace, "m1.onnx"), "storageSize": "1Gi", "framework": "onnx", "replicas": 1}
    model = {
        "apiVersion": "oda.tmforum.org.oda.tmforum.org/v1beta1",
        "kind": "MLModel",
        "metadata": {"name": NAME},
        "spec": {**spec, "expose": True, "resources": RESOURCES},
    }
    apply(node, namespace, model)
    until_ready(node, namespace, NAME, 1, kind="mlmodel")
    ask_on(node, namespace, f"http://{NAME}-service:8501/predict", QUESTION)
    until_answer(node, namespace, 1)
    ok(node, "annotate", "mlmodel", NAME, f"{OFFLOAD}=runpod", "-n", namespace)
    until_ready(node, namespace, NAME, 2, kind="mlmodel")
    assert places(node, namespace) == {NODES["runpod"]}
    node.until(lambda: all(deadlines(node, namespace)), "the deadline, before which other servers have to follow")
    ok(node, "patch", "mlmodel", NAME, "-n", namespace, "--type=merge", "-p", '{"spec": {"rollbackTo": 1}}')
    until_ready(node, namespace, NAME, 1, kind="mlmodel")
    assert places(node, namespace) == {"local"}
    assert answers(node, namespace) == [of(1)]
