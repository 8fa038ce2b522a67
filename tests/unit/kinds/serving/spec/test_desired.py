"""Two kinds, one engine: what each manifest means."""

from __future__ import annotations

import msgspec
import pytest
import yaml

from scripts.generate import ROOT
from skysail.kinds.serving.api.types import ML_MODEL, MODEL_DEPLOYMENT, MLModel, ModelDeployment
from skysail.kinds.serving.spec.desired import Autoscaling, FixedScale, ModelStorage, RevisionSpec, ServiceRef
from tests.unit.kinds.serving.samples import deployment, ml_model, serving, told

SHA = "0f" * 32


def test_a_model_deployment_is_fetched_by_its_pods_and_reached_by_two_services():
    found = serving(deployment(validateScript="validate.py", credentialsSecret="keys", rollbackTo=3, sha256=SHA))
    assert (found.kind, found.storage, found.rollback_to) == (MODEL_DEPLOYMENT, None, 3)
    assert found.services == (ServiceRef("iris-service", 8000), ServiceRef("svc-iris", 80))
    assert found.address == "http://iris-service.shop.svc:8000"
    assert found.want == RevisionSpec(
        uri="https://models.example.com/iris.onnx",
        version="v1",
        runtime="fastapi-pytorch",
        image="localhost/fastapi-pytorch:dev",
        resources={"requests": {"cpu": "250m"}},
        script="validate.py",
        sha256=SHA,
        credentials="keys",
    )


def test_an_ml_model_has_a_claim_and_is_reached_by_one_service():
    found = serving(ml_model(resources={"limits": {"cpu": 1}}, credentialsSecret="keys"))
    assert (found.kind, found.storage) == (ML_MODEL, ModelStorage("5Gi", is_shared=False))
    assert (found.services, found.exposed) == ((ServiceRef("flowers-service", 8501),), True)
    assert found.address == "flowers-service.shop.svc.cluster.local:8501"
    assert found.want == RevisionSpec(
        uri="https://models.example.com/flowers.tar.gz",
        version="1",
        runtime="tensorflow",
        image="tensorflow/serving:latest",
        resources={"limits": {"cpu": 1}},
        credentials="keys",
    )


def test_a_model_that_is_not_exposed_answers_nowhere_and_still_knows_its_service():
    found = serving(ml_model(expose=False))
    assert (found.services, found.address, found.exposed) == ((), "", False)
    assert found.names.services == ("flowers-service",)


@pytest.mark.parametrize(
    ("spec", "scale"),
    [
        ({}, FixedScale(1)),
        ({"minReplicas": 3}, FixedScale(3)),
        ({"autoscale": True}, Autoscaling(1, 10, 80)),
        ({"autoscale": True, "minReplicas": 20}, Autoscaling(20, 20, 80)),
        ({"autoscale": True, "maxReplicas": 4, "targetCPUUtilizationPercentage": 50}, Autoscaling(1, 4, 50)),
        ({"autoscale": True, "minReplicas": 2, "maxReplicas": 2}, Autoscaling(2, 2, 80)),
    ],
)
def test_how_many_servers_there_are(spec, scale):
    assert serving(deployment(**spec)).scale == scale


@pytest.mark.parametrize("replicas", [0, 4])
def test_an_ml_model_has_as_many_servers_as_it_says(replicas):
    assert serving(ml_model(replicas=replicas)).scale == FixedScale(replicas)


def test_desired_image_prefers_user_then_operator_then_runtime():
    settings = told(runtime_images={"tensorflow": "ealen/echo-server", "fastapi-pytorch": "team/server:2"})
    assert serving(deployment(), settings).want.image == "team/server:2"
    assert serving(deployment(runtimeImage="mine:1"), settings).want.image == "mine:1"
    assert serving(deployment(runtime="triton"), settings).want.image == "nvcr.io/nvidia/tritonserver:latest"
    assert serving(ml_model(), settings).want.image == "ealen/echo-server"
    annotated = ml_model(annotations={"skysail.dev/runtime-image": " mine:2 "})
    assert serving(annotated, settings).want.image == "mine:2"


def test_annotations_tell_where_a_server_is_ready_and_who_may_share_the_claim():
    notes = {"skysail.dev/ready-path": "/ping", "skysail.dev/access-mode": "ReadWriteMany"}
    found = serving(ml_model(annotations=notes))
    assert (found.want.ready, found.storage.is_shared) == ("/ping", True)
    assert serving(deployment(annotations=notes)).want.ready == "/ping"


@pytest.mark.parametrize("written", [SHA, f"sha256:{SHA}"])
def test_a_checksum_is_taken_with_and_without_its_algorithm(written):
    assert serving(deployment(sha256=written)).want.sha256 == SHA
    assert serving(ml_model(sha256=written)).want.sha256 == SHA


@pytest.mark.parametrize(
    ("framework", "runtime"),
    [
        ("tensorflow", "tensorflow"),
        ("TensorFlow ", "tensorflow"),
        ("pytorch", "fastapi-pytorch"),
        ("onnx", "fastapi-onnx"),
        ("triton", "triton"),
        ("torchserve", "torchserve"),
    ],
)
def test_a_framework_has_its_runtime(framework, runtime):
    assert serving(ml_model(framework=framework)).want.runtime == runtime


@pytest.mark.parametrize("spec", [{"framework": "sklearn"}, {"modelURL": ""}, {"modelURL": "http://[", "replicas": 0}])
def test_a_wrong_spec_still_has_its_names_its_storage_and_its_scale(spec):
    """What is served goes on while the spec is wrong."""
    found = serving(ml_model(**spec))
    assert found.names.deployment == "flowers-server"
    assert found.storage == ModelStorage("5Gi", is_shared=False)


KINDS = {"ModelDeployment": ModelDeployment, "MLModel": MLModel}
SAMPLES = [
    document
    for path in sorted((ROOT / "config/samples").glob("*model*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample["metadata"]["name"])
def test_every_sample_is_understood(sample):
    found = serving(msgspec.convert(sample, KINDS[sample["kind"]]))
    assert found.want.image
    assert found.want.uri.startswith("https://")
    assert found.exposed
