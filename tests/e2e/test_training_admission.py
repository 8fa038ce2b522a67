"""What people are told when a TrainingJob cannot be as they wrote it: before it is stored, or else in its status."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.kubectl import apply, fresh_namespace, get, ok

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from tests.support.cluster import Cluster

WEBHOOK = 'admission webhook "trainingjobs.skysail.dev" denied the request: '


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    with fresh_namespace(cluster) as name:
        yield name


def manifest(name: str = "mnist", **spec: Any) -> dict[str, Any]:
    wanted = {"framework": "pytorch", "image": "trainer:1", "command": ["train"], **spec}
    metadata = {"name": name}
    return {"apiVersion": "ml.example.com/v1alpha1", "kind": "TrainingJob", "metadata": metadata, "spec": wanted}


def try_to_apply(cluster: Cluster, namespace: str, wanted: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    return cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(wanted))


def test_without_admission_the_status_has_the_same_sentence(cluster: Cluster, namespace: str) -> None:
    """Before this module's operator is there, which would be asked."""
    ok(cluster, "delete", "mutatingwebhookconfigurations", "--all")
    cluster.start_operator("unasked", flags=("--no-webhooks",), restart=True)
    wrong = {"hyperparameters": {"layers": [64, 32]}}
    try:
        apply(cluster, namespace, manifest(**wrong))
        cluster.until(lambda: _accepted(cluster, namespace).get("reason") == "InvalidSpec", "the objection to be told")
        told = _accepted(cluster, namespace)["message"]
        assert told == "spec.hyperparameters.layers is a list ([64,32]): write a string, a number or a boolean."
        assert ok(cluster, "get", "jobs,pods", "-n", namespace, "-o", "name") == ""
        apply(cluster, namespace, manifest(hyperparameters={"layers": "64,32"}))
        cluster.until(lambda: ok(cluster, "get", "jobs", "-n", namespace, "-o", "name") != "", "the job to begin")
        cluster.until(lambda: _accepted(cluster, namespace)["status"] == "True", "the objection to be taken back")
    finally:
        cluster.end_operator("unasked")


@pytest.mark.usefixtures("operator")
@pytest.mark.parametrize(
    ("spec", "want"),
    [
        (
            {"hyperparameters": {"layers": [64, 32]}},
            f"{WEBHOOK}spec.hyperparameters.layers is a list ([64,32]): write a string, a number or a boolean.",
        ),
        ({"hyperparameters": {"lr": 1, "LR": 2}}, "the same environment variable HYPERPARAM_LR"),
        (
            {"checkpointDir": "/data/saved", "dataVolume": {"claimName": "digits"}},
            f"{WEBHOOK}spec.checkpointDir is /data/saved, which overlaps the mount at /data: ",
        ),
        (
            {"gpuPerWorker": 1, "resources": {"limits": {"nvidia.com/gpu": 2}}},
            "spec.gpuPerWorker is 1, but spec.resources.limits has nvidia.com/gpu: 2: make them equal, or remove one.",
        ),
        ({"resources": {"limits": {"cpu": 1}, "requests": {"cpu": 2}}}, "spec.resources.requests has cpu: 2"),
        ({"framework": "jax", "elastic": {"min": 1, "max": 2}}, "spec.framework is jax: remove spec.elastic"),
        (
            {"podTemplate": {"spec": {"containers": [{"name": "trainer", "env": [{"name": "RANK", "value": "7"}]}]}}},
            "spec.podTemplate.spec.containers[0].env[0] sets RANK, which Skysail sets for each pod",
        ),
        ({"podTemplate": {"spec": {"restartPolicy": "Always"}}}, "spec.podTemplate.spec.restartPolicy is Always"),
        ({"workers": 0}, "spec.workers: Invalid value: 0: spec.workers in body should be greater than or equal to 1"),
        ({"workers": "two", "hyperparameters": {"a": None}}, 'spec.workers: Invalid value: "string"'),
        ({"roles": {"chief": {}}}, "only TensorFlow has a chief and parameter servers"),
    ],
)
def test_what_is_wrong_is_refused_by_a_sentence(cluster: Cluster, namespace: str, spec: Any, want: str) -> None:
    done = try_to_apply(cluster, namespace, manifest(**spec))
    assert done.returncode != 0
    assert want in done.stderr
    assert ok(cluster, "get", "trainingjobs", "-n", namespace, "-o", "name") == ""


@pytest.mark.usefixtures("operator")
def test_null_is_dropped_by_the_api_server_or_refused(cluster: Cluster, namespace: str) -> None:
    wanted = manifest(hyperparameters={"seed": None, "lr": 1}, suspend=True)
    sent = json.dumps(wanted)
    refused = cluster.kubectl("apply", "--server-side", "-n", namespace, "-f", "-", stdin=sent)
    assert "spec.hyperparameters.seed is null (null): write a string, a number or a boolean." in refused.stderr
    apply(cluster, namespace, wanted)
    assert get(cluster, namespace, "trainingjob", "mnist")["spec"]["hyperparameters"] == {"lr": 1}


@pytest.mark.usefixtures("operator")
def test_what_may_not_change_is_refused_and_the_rest_may(cluster: Cluster, namespace: str) -> None:
    apply(cluster, namespace, manifest(suspend=True, checkpointDir="/checkpoints"))
    stored = get(cluster, namespace, "trainingjob", "mnist")
    defaults = {"workers": 1, "gpuPerWorker": 0, "checkpointInterval": 1, "restartPolicy": "OnFailure"}
    assert defaults.items() <= stored["spec"].items()
    for spec, want in (
        ({"framework": "jax"}, "framework is immutable: delete the TrainingJob"),
        ({"managedBy": "kueue.x-k8s.io/multikueue"}, "managedBy is immutable"),
        ({"checkpoint": {"size": "1Ti"}}, "spec.checkpoint.size cannot be changed from its default to 1Ti"),
    ):
        done = try_to_apply(cluster, namespace, manifest(**{"suspend": True, "checkpointDir": "/checkpoints", **spec}))
        assert done.returncode != 0
        assert want in done.stderr
    more = try_to_apply(cluster, namespace, manifest(suspend=True, checkpointDir="/checkpoints", workers=2))
    assert more.returncode == 0, more.stderr
    assert "Warning: PVC mnist-checkpoints has access mode ReadWriteOnce" in more.stderr


def _accepted(cluster: Cluster, namespace: str) -> dict[str, Any]:
    rows = get(cluster, namespace, "trainingjob", "mnist").get("status", {}).get("conditions", [])
    return next((row for row in rows if row["type"] == "Accepted"), {})
