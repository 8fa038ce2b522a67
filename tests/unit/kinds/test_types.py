"""The kinds as people have them in their manifests: every field, bound, default and required name, letter by letter."""

from __future__ import annotations

import msgspec
import pytest
import yaml

from scripts.generate import ROOT
from skysail.app.kinds import ALL_KINDS, COMPATIBLE_KINDS
from skysail.kinds.serving.api.types import MLModelStatus
from skysail.kinds.training.api.training_job import TrainingJobStatus
from skysail.kube.api import crd
from skysail.kube.api.conventions import walk

KINDS = {kind.resource.kind: kind for kind in (*ALL_KINDS, *COMPATIBLE_KINDS)}
SAMPLES = [
    document
    for path in sorted((ROOT / "config/samples").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
    if document["kind"] in KINDS
]
QUANTITY = {"type": "string", "maxLength": 64}
MODAL_STATUS = ["phase", "modal_app_id", "conditions"]


def schema_of(name, part):
    return crd.manifest(KINDS[name])["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][part]


def read(document):
    """The object, as the cache reads it from the server's reply."""
    return msgspec.json.decode(msgspec.json.encode(document), type=KINDS[document["kind"]].struct)


# What the first operators' manifests rely on: (kind, required fields, what else is said about a field).
SPECS = [
    (
        "TrainingJob",
        ["framework", "image", "command"],
        {
            "framework": {"type": "string", "enum": ["jax", "pytorch", "tensorflow", "xgboost"]},
            "image": {"type": "string"},
            "command": {"type": "array"},
            "args": {"type": "array"},
            "workers": {"type": "integer", "minimum": 1, "maximum": 100, "default": 1},
            "gpuPerWorker": {"type": "integer", "minimum": 0, "maximum": 8, "default": 0},
            "resources": {"type": "object"},
            "dataVolume": {"type": "object", "required": ["claimName"]},
            "checkpointDir": {"type": "string"},
            "checkpointInterval": {"type": "integer", "minimum": 1, "default": 1},
            "hyperparameters": {"additionalProperties": {"x-kubernetes-preserve-unknown-fields": True}},
            "restartPolicy": {"type": "string", "enum": ["Never", "OnFailure"], "default": "OnFailure"},
            "suspend": {"type": "boolean", "default": False},
            "managedBy": {"type": "string"},
            "runPolicy": {"type": "object", "default": {}},
            "scheduling": {"type": "object"},
            "roles": {"type": "object"},
            "elastic": {"type": "object", "required": ["min", "max"]},
            "checkpoint": {"type": "object"},
            "podTemplate": {"type": "object"},
        },
    ),
    (
        "ModalJob",
        ["image"],
        {
            "image": {"type": "string"},
            "command": {"type": "array"},
            "args": {"type": "array"},
            "cpu": {**QUANTITY, "default": "1.0"},
            "memory": {**QUANTITY, "default": "512Mi"},
            "gpu": {"type": "string", "nullable": True},
            "env": {"type": "object"},
            # The first operator's default of 300 s ended a training after five minutes.
            "timeout": {"type": "integer", "default": 86400},
            "retries": {"type": "integer", "default": 0},
            "tunnel_enabled": {"type": "boolean", "default": False},
            "tunnel_port": {"type": "integer", "default": 8000},
            "replicas": {"type": "integer", "default": 1},
            "enable_i6pn": {"type": "boolean", "default": False},
        },
    ),
    (
        "ModalEndpoint",
        ["image", "handler"],
        {
            "image": {"type": "string"},
            "handler": {"type": "string"},
            "command": {"type": "array"},
            "args": {"type": "array"},
            "cpu": {**QUANTITY, "default": "1.0"},
            "memory": {**QUANTITY, "default": "512Mi"},
            "gpu": {"type": "string", "nullable": True},
            "min_replicas": {"type": "integer", "default": 0},
            "max_replicas": {"type": "integer", "default": 10},
            "env": {"type": "object"},
            "code": {"type": "object"},
            "port": {"type": "integer", "default": 8000},
        },
    ),
    (
        "ModalFunction",
        ["image", "handler"],
        {
            "image": {"type": "string"},
            "handler": {"type": "string"},
            "cpu": {**QUANTITY, "default": "1.0"},
            "memory": {**QUANTITY, "default": "512Mi"},
            "gpu": {"type": "string", "nullable": True},
            "env": {"type": "object"},
            "timeout": {"type": "integer", "default": 300},
            "concurrency": {"type": "integer", "default": 1},
            "code": {"type": "object"},
        },
    ),
    (
        "ModelDeployment",
        ["modelURI", "runtime"],
        {
            "modelURI": {"type": "string"},
            "runtime": {"type": "string", "enum": ["fastapi-pytorch", "torchserve", "triton"]},
            "resources": {"type": "object"},
            "autoscale": {"type": "boolean", "default": False},
            "version": {"type": "string", "default": "v1"},
            "validateScript": {"type": "string"},
            "runtimeImage": {"type": "string"},
            "minReplicas": {"type": "integer", "default": 1},
            "maxReplicas": {"type": "integer"},
            "targetCPUUtilizationPercentage": {"type": "integer"},
            "sha256": {"type": "string"},
            "credentialsSecret": {"type": "string"},
            "env": {"type": "array"},
            "rollbackTo": {"type": "integer", "minimum": 1},
        },
    ),
    (
        "MLModel",
        ["storageSize", "framework", "expose"],
        {
            "modelURL": {"type": "string"},
            "storageSize": QUANTITY,
            "framework": {"type": "string"},
            "replicas": {"type": "integer", "default": 1},
            "expose": {"type": "boolean"},
            "resources": {"type": "object"},
            "sha256": {"type": "string"},
            "credentialsSecret": {"type": "string"},
            "env": {"type": "array"},
            "rollbackTo": {"type": "integer", "minimum": 1},
        },
    ),
    (
        "TrainJob",
        ["runtimeRef"],
        {
            "runtimeRef": {"type": "object", "required": ["name"]},
            "initializer": {"type": "object"},
            "trainer": {"type": "object"},
            "runtimePatches": {"type": "array"},
            "podTemplateOverrides": {"type": "array"},
            "podSpecOverrides": {"type": "array"},
            "suspend": {"type": "boolean"},
            "activeDeadlineSeconds": {"type": "integer"},
            "managedBy": {"type": "string"},
        },
    ),
]
STATUSES = {
    "TrainingJob": ["phase", "startTime", "completionTime", "workerStatuses", "conditions", "observedGeneration"],
    "ModalJob": [
        *MODAL_STATUS,
        *("modal_function_id", "tunnel_url", "log_url", "created_at", "started_at", "finished_at"),
    ],
    "ModalEndpoint": [*MODAL_STATUS, "endpoint_url", "ready_replicas"],
    "ModalFunction": [*MODAL_STATUS, "function_url", "message", "created_at", "deployed_at"],
    "ModelDeployment": ["phase", "message", "version"],
    "MLModel": ["phase", "observedGeneration", "message", "serviceEndpoint"],
    "TrainJob": ["conditions", "jobsStatus", "trainerStatus"],
}


@pytest.mark.parametrize(("name", "required", "said"), SPECS)
def test_a_spec_has_exactly_these_fields(name, required, said):
    schema = schema_of(name, "spec")
    assert schema["required"] == required
    assert schema["properties"].keys() == said.keys()
    for field, words in said.items():
        assert {word: schema["properties"][field].get(word) for word in words} == words, field


@pytest.mark.parametrize(("name", "wanted"), STATUSES.items())
def test_a_status_keeps_every_field_that_people_read(name, wanted):
    assert set(wanted) <= schema_of(name, "status")["properties"].keys()


def test_a_field_without_a_default_has_none_in_the_schema_either():
    for name, _, said in SPECS:
        properties = schema_of(name, "spec")["properties"]
        silent = [field for field, words in said.items() if "type" in words and "default" not in words]
        extra = [field for field in silent if "default" in properties[field] and name != "TrainJob"]
        assert extra == [], name


@pytest.mark.parametrize(
    ("name", "rule"),
    [("ModalEndpoint", "self == 'serve' || self.contains('.')"), ("ModalFunction", "self.contains('.')")],
)
def test_schema_handler_has_a_rule_that_it_names_a_module(name, rule):
    (found,) = schema_of(name, "spec")["properties"]["handler"]["x-kubernetes-validations"]
    assert found["rule"] == rule
    assert "write module.function" in found["message"]


def test_every_status_has_conditions_and_the_generation_that_was_seen():
    for name in KINDS:
        properties = schema_of(name, "status")["properties"]
        assert {"conditions", "observedGeneration"} <= properties.keys(), name


@pytest.mark.parametrize("document", SAMPLES, ids=lambda document: document["metadata"]["name"])
def test_a_sample_is_read_without_losing_a_field(document):
    spec = msgspec.json.decode(msgspec.json.encode(read(document).spec))
    defaults = {name: part.get("default") for name, part in schema_of(document["kind"], "spec")["properties"].items()}
    lost = {name: value for name, value in document["spec"].items() if value not in (spec.get(name), defaults[name])}
    assert lost == {}


def test_there_is_a_sample_of_every_kind_that_people_write():
    assert {document["kind"] for document in SAMPLES} == KINDS.keys() - {
        "CloudInstance",
        "OffloadPolicy",
        "SpendAccount",
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"workers": 0}, "Expected `int` >= 1 - at `$.spec.workers`"),
        ({"framework": "mxnet"}, "Invalid enum value 'mxnet' - at `$.spec.framework`"),
        ({"image": None}, "Expected `str`, got `null` - at `$.spec.image`"),
    ],
)
def test_our_own_reading_refuses_with_the_path(change, words):
    job = next(document for document in SAMPLES if document["kind"] == "TrainingJob")
    with pytest.raises(msgspec.ValidationError) as refused:
        read({**job, "spec": {**job["spec"], **change}})
    assert str(refused.value) == words


def test_a_status_writes_nothing_that_says_no_more_than_its_default():
    assert msgspec.to_builtins(TrainingJobStatus()) == {}
    assert msgspec.to_builtins(TrainingJobStatus(phase="Pending")) == {"phase": "Pending"}


def test_the_first_status_of_an_ml_model_has_both_required_fields():
    first = MLModelStatus(phase="Pending", observed_generation=0)
    assert msgspec.to_builtins(first) == {"phase": "Pending", "observedGeneration": 0}


def test_a_free_form_field_is_only_where_it_must_be():
    free = {
        (name, path)
        for name in KINDS
        for part in ("spec", "status")
        for path, node in walk(schema_of(name, part), part)
        if node.get("x-kubernetes-preserve-unknown-fields")
    }
    assert free == {
        ("TrainingJob", "spec.hyperparameters.*"),
        ("TrainingJob", "spec.podTemplate.spec"),
        ("TrainJob", "spec.podSpecOverrides[]"),
        ("TrainJob", "spec.podTemplateOverrides[]"),
        ("TrainJob", "spec.runtimePatches[]"),
    }
