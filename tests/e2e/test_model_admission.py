"""What people are told when a model cannot be as they wrote it: before it is stored, or else in its status."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.kubectl import apply, fresh_namespace, get, ok

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from tests.support.cluster import Cluster

METADATA_SERVER = "http://169.254.169.254/latest/meta-data"


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    with fresh_namespace(cluster) as name:
        yield name


def deployment(**spec: Any) -> dict[str, Any]:
    wanted = {"modelURI": "https://models.example.com/iris.onnx", "runtime": "fastapi-pytorch", "resources": {}, **spec}
    return {
        "apiVersion": "mlops.sathvik.dev/v1",
        "kind": "ModelDeployment",
        "metadata": {"name": "iris"},
        "spec": {"autoscale": False, "version": "v1", **wanted},
    }


def ml_model(annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    wanted = {"modelURL": "https://models.example.com/flowers.tar.gz", "storageSize": "1Gi", **spec}
    return {
        "apiVersion": "oda.tmforum.org.oda.tmforum.org/v1beta1",
        "kind": "MLModel",
        "metadata": {"name": "flowers", "annotations": annotations or {}},
        "spec": {"framework": "tensorflow", "replicas": 1, "expose": True, **wanted},
    }


def try_to_apply(cluster: Cluster, namespace: str, wanted: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    return cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(wanted))


def test_without_admission_the_status_has_the_same_sentence(cluster: Cluster, namespace: str) -> None:
    """Before this module's operator is there, which would be asked."""
    ok(cluster, "delete", "mutatingwebhookconfigurations", "--all")
    cluster.start_operator("unasked", flags=("--no-webhooks",), restart=True)
    try:
        apply(cluster, namespace, deployment(modelURI=METADATA_SERVER))
        cluster.until(lambda: _accepted(cluster, namespace).get("reason") == "InvalidSpec", "the objection to be told")
        assert _accepted(cluster, namespace)["message"].startswith("spec.modelURI is invalid. 169.254.169.254 is")
        assert ok(cluster, "get", "jobs,pods,deployments", "-n", namespace, "-o", "name") == ""
        apply(cluster, namespace, deployment())
        cluster.until(lambda: ok(cluster, "get", "jobs", "-n", namespace, "-o", "name") != "", "the download to begin")
        cluster.until(lambda: _accepted(cluster, namespace)["status"] == "True", "the objection to be taken back")
    finally:
        cluster.end_operator("unasked")


@pytest.mark.usefixtures("operator")
@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (
            deployment(modelURI=METADATA_SERVER),
            'webhook "modeldeployments.skysail.dev" denied the request: spec.modelURI is invalid. 169.254.169.254',
        ),
        (deployment(modelURI="http://192.168.1.1/iris.onnx"), "allowed_model_hosts"),
        (deployment(autoscale=True), "set spec.resources.requests.cpu"),
        (deployment(minReplicas=3, maxReplicas=2), "minReplicas is above maxReplicas"),
        (deployment(rollbackTo=0), "should be greater than or equal to 1"),
        (deployment(sha256="abc"), "spec.sha256"),
        (deployment(env=[{"name": "MODEL_PATH", "value": "/x"}]), "spec.env[0] sets MODEL_PATH"),
        (deployment(runtime="mlflow"), 'supported values: "fastapi-pytorch", "torchserve", "triton"'),
        (ml_model(framework="sklearn"), "use one of onnx, pytorch, tensorflow, torchserve, triton."),
        (ml_model(modelURL=""), "spec.modelURL is empty"),
        (ml_model(storageSize="0"), "set a size such as 5Gi."),
        (ml_model(storageSize="much"), "spec.storageSize"),
        (ml_model({"skysail.dev/access-mode": "ReadOnlyMany"}), "set one of ReadWriteOnce, ReadWriteMany."),
    ],
)
def test_what_is_wrong_is_refused_by_a_sentence(cluster: Cluster, namespace: str, wanted: Any, words: str) -> None:
    done = try_to_apply(cluster, namespace, wanted)
    assert done.returncode != 0
    assert words in done.stderr
    assert ok(cluster, "get", "modeldeployments,mlmodels", "-n", namespace, "-o", "name") == ""


@pytest.mark.usefixtures("operator")
def test_what_is_likely_to_fail_is_warned_about_and_stored(cluster: Cluster, namespace: str) -> None:
    done = try_to_apply(cluster, namespace, ml_model(modelURL="https://models.example.com/tf_model.h5"))
    assert done.returncode == 0, done.stderr
    assert "Warning: spec.modelURL ends with .h5, which tensorflow cannot load" in done.stderr


@pytest.mark.usefixtures("operator")
def test_what_may_not_change_is_refused_and_the_rest_may(cluster: Cluster, namespace: str) -> None:
    """Also where only an annotation was changed, which is no part of the spec."""
    apply(cluster, namespace, ml_model())
    for wanted, words in (
        (ml_model({"skysail.dev/access-mode": "ReadWriteMany"}), "Annotation skysail.dev/access-mode is immutable"),
        (ml_model({"skysail.dev/ready-path": "ping"}), "Annotation skysail.dev/ready-path is ping"),
    ):
        done = try_to_apply(cluster, namespace, wanted)
        assert done.returncode != 0
        assert words in done.stderr
    apply(cluster, namespace, ml_model({"skysail.dev/ready-path": "/ping", "team": "a"}, replicas=2, storageSize="2Gi"))
    assert get(cluster, namespace, "mlmodel", "flowers")["spec"]["replicas"] == 2
    done = try_to_apply(cluster, namespace, ml_model({"skysail.dev/ready-path": "/ping", "team": "a"}))
    assert (done.returncode, "Warning: spec.storageSize 1Gi has no effect" in done.stderr) == (0, True)


def _accepted(cluster: Cluster, namespace: str) -> dict[str, Any]:
    rows = get(cluster, namespace, "modeldeployment", "iris").get("status", {}).get("conditions", [])
    return next((row for row in rows if row["type"] == "Accepted"), {})
