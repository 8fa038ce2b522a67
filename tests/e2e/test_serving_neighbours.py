"""A model among others on the real API server: after another operator, beside another kind, on a claim that grows."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.test_serving import (
    NAME,
    answers,
    conditions,
    deployment,
    downloaded,
    ml_model,
    namespace,
    operator,
    pods,
    serve,
    status,
    tell,
    until,
)
from tests.support.kubectl import apply, get, ok

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.cluster import Cluster

Manifest = dict[str, Any]

__all__ = ["namespace", "operator"]


def leave_behind(cluster: Cluster, namespace: str) -> None:
    """What the Model Operator makes of a model."""
    model = get(cluster, namespace, "modeldeployment", NAME)
    owner = {"apiVersion": model["apiVersion"], "kind": model["kind"], "name": NAME, "uid": model["metadata"]["uid"]}
    owners, labels = [{**owner, "controller": True}], {"model": NAME, "type": "inference"}
    container = {"name": "inference", "image": "fastapi-pytorch:dev", "ports": [{"containerPort": 8000}]}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    servers = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": f"inference-{NAME}", "labels": labels, "ownerReferences": owners},
        "spec": {"selector": {"matchLabels": {"model": NAME}}, "template": template},
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": f"svc-{NAME}", "ownerReferences": owners},
        "spec": {"selector": {"model": NAME}, "ports": [{"port": 80, "targetPort": 8000}]},
    }
    for manifest in (servers, service):
        apply(cluster, namespace, manifest)


def chosen(cluster: Cluster, namespace: str) -> Manifest:
    """What the Service leads to that the Model Operator made."""
    found: Manifest = get(cluster, namespace, "service", f"svc-{NAME}")["spec"]["selector"]
    return found


@contextmanager
def volume(cluster: Cluster, namespace: str, *, grows: bool) -> Iterator[None]:
    """For the claim of the model, of a class that lets it grow or not. A claim gets the newest default class."""
    name, claim = f"{namespace}-volume", f"{NAME}-pvc"
    metadata = {"name": name, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
    class_ = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": metadata}
    class_ |= {"provisioner": "kubernetes.io/no-provisioner", "allowVolumeExpansion": grows}
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": name,
        "hostPath": {"path": "/nowhere"},
        "claimRef": {"namespace": namespace, "name": claim},
    }
    disk = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}
    for manifest in (class_, disk):
        ok(cluster, "apply", "-f", "-", stdin=json.dumps(manifest))
    yield
    ok(cluster, "delete", f"storageclass/{name}", f"persistentvolume/{name}", "--wait=false")


def until_bound(cluster: Cluster, namespace: str) -> None:
    def is_bound() -> bool:
        claims = get(cluster, namespace, "pvc")["items"]
        return [claim["status"]["phase"] for claim in claims] == ["Bound"]

    cluster.until(is_bound, "the claim to be bound")


def asked_for(cluster: Cluster, namespace: str) -> str:
    found: str = get(cluster, namespace, "pvc", f"{NAME}-pvc")["spec"]["resources"]["requests"]["storage"]
    return found


def test_what_another_operator_serves_goes_on_until_ours_answers(
    cluster: Cluster, operator: str, namespace: str
) -> None:
    apply(cluster, namespace, deployment())
    leave_behind(cluster, namespace)
    tell(cluster, namespace, "Job", downloaded())
    cluster.until(lambda: len(pods(cluster, namespace, "ReplicaSet")) == 2, "servers of both")
    assert chosen(cluster, namespace) == {"model": NAME}
    tell(cluster, namespace, "ReplicaSet", answers(), 2)
    until(cluster, namespace, phase="Ready", version="v1")
    assert "skysail.dev/model-uid" in chosen(cluster, namespace)
    names = ("get", "deployments", "-n", namespace, "-o", "name")
    cluster.until(lambda: ok(cluster, *names).split() == [f"deployment.apps/{NAME}"], "the other one to end")
    cluster.until(lambda: conditions(status(cluster, namespace))["Progressing"] == ("False", "Served"), "to settle")


def test_a_name_that_somebody_else_has_is_told_as_such(cluster: Cluster, operator: str, namespace: str) -> None:
    apply(cluster, namespace, deployment())
    serve(cluster, namespace)
    apply(cluster, namespace, ml_model())
    tell(cluster, namespace, "Job", downloaded())
    shown = until(cluster, namespace, "mlmodel", phase="Failed")
    assert {row: conditions(shown)[row] for row in ("Accepted", "Progressing", "Ready")} == {
        "Accepted": ("False", "NameConflict"),
        "Progressing": ("False", "NameConflict"),
        "Ready": ("False", "NameConflict"),
    }
    assert f"Service {NAME}-service belongs to ModelDeployment {NAME}" in shown["message"]


def test_a_deployment_of_somebody_else_is_told_as_such(cluster: Cluster, operator: str, namespace: str) -> None:
    """And not as a revision that the API server would not take."""
    ok(cluster, "create", "deployment", NAME, "--image=busybox", "-n", namespace)
    apply(cluster, namespace, deployment())
    tell(cluster, namespace, "Job", downloaded())
    shown = until(cluster, namespace, phase="Failed")
    assert conditions(shown)["Ready"] == ("False", "NameConflict")
    assert f"Deployment {NAME} belongs to another user or tool" in shown["message"]
    ok(cluster, "delete", "deployment", NAME, "-n", namespace)
    tell(cluster, namespace, "ReplicaSet", answers())
    until(cluster, namespace, phase="Ready")


def test_what_somebody_changes_of_a_model_is_put_back_and_told(cluster: Cluster, operator: str, namespace: str) -> None:
    apply(cluster, namespace, deployment())
    serve(cluster, namespace)
    service, there = f"{NAME}-service", ("-n", namespace)
    wanted = get(cluster, namespace, "service", service)["spec"]["selector"]
    ok(cluster, "set", "selector", "service", service, "app=another", *there)
    ok(cluster, "patch", "deployment", NAME, "--type=merge", "-p", '{"spec": {"minReadySeconds": 77}}', *there)
    ok(cluster, "annotate", "deployment", NAME, "example.com/mine=yes", *there)

    def is_back() -> bool:
        servers = get(cluster, namespace, "deployment", NAME)
        chosen = get(cluster, namespace, "service", service)["spec"]["selector"]
        return chosen == wanted and servers["spec"].get("minReadySeconds") != 77

    cluster.until(is_back, "both to be put back")
    assert get(cluster, namespace, "deployment", NAME)["metadata"]["annotations"]["example.com/mine"] == "yes"
    told = ("get", "events", *there, "--field-selector", "reason=DriftCorrected", "-o", "jsonpath={.items[*].message}")
    cluster.until(lambda: f"Service {service} was modified and has been restored" in ok(cluster, *told), "an event")


@pytest.mark.parametrize("grows", [True, False])
def test_a_claim_grows_where_its_class_allows_it(cluster: Cluster, operator: str, namespace: str, grows: bool) -> None:  # noqa: FBT001 (a row of a table)
    with volume(cluster, namespace, grows=grows):
        apply(cluster, namespace, ml_model())
        until_bound(cluster, namespace)
        spec = json.dumps({"spec": {"storageSize": "2Gi"}})
        ok(cluster, "patch", "mlmodel", NAME, "-n", namespace, "--type=merge", "-p", spec)
        if grows:
            cluster.until(lambda: asked_for(cluster, namespace) == "2Gi", "the claim to grow")
            return
        cluster.until(
            lambda: conditions(status(cluster, namespace, "mlmodel"))["Accepted"] == ("False", "VolumeExpansionFailed"),
            "a refusal",
        )
        assert "Set spec.storageSize back to 1Gi" in status(cluster, namespace, "mlmodel")["message"]
        assert conditions(status(cluster, namespace, "mlmodel"))["Progressing"][0] == "True"
