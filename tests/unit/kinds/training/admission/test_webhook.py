from __future__ import annotations

from typing import Any

import pytest

from skysail.kinds.training.admission.webhook import HOOKS

WRONG = {"hyperparameters": {"layers": [64]}}
HOOK, MODAL_JOB_HOOK = HOOKS
admit = HOOK.admit


def manifest(*, metadata: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    wanted = {"framework": "pytorch", "image": "trainer:1", "command": ["train"], **spec}
    return {
        "apiVersion": "ml.example.com/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "mnist", "namespace": "ml-jobs", **(metadata or {})},
        "spec": wanted,
    }


def test_a_new_job_is_refused_with_every_objection():
    refused = admit(manifest(**WRONG, checkpointDir="/"), None).denied or ""
    assert "spec.hyperparameters.layers" in refused
    assert "spec.checkpointDir" in refused


def test_nothing_is_written():
    """The schema has the defaults; so that asking twice changes nothing more."""
    assert admit(manifest(), None).patch == ()


def test_a_job_whose_name_the_server_will_make_is_looked_at_too():
    unnamed = manifest(**WRONG)
    unnamed["metadata"] = {"generateName": "mnist-", "namespace": "ml-jobs"}
    assert admit(unnamed, None).denied is not None


@pytest.mark.parametrize(
    "object_",
    [
        {},
        {"metadata": {}, "spec": None},
        manifest(workers="two"),
        manifest(hyperparameters=[1]),
        manifest(podTemplate={"spec": [1]}),
        manifest(metadata={"labels": {"a": 1}}),
    ],
)
def test_what_has_the_wrong_types_is_left_to_the_schema(object_):
    assert admit(object_, None).denied is None


def test_what_was_wrong_before_can_still_be_changed_otherwise():
    held = manifest(**WRONG, suspend=True)
    assert admit(held, manifest(**WRONG)).denied is None


def test_only_what_a_change_makes_wrong_is_named():
    refused = admit(manifest(**WRONG, checkpointDir="/"), manifest(**WRONG)).denied or ""
    assert refused.startswith("spec.checkpointDir is /")
    assert "layers" not in refused


def test_a_job_that_goes_is_let_go():
    going = manifest(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}, **WRONG)
    assert admit(going, manifest()).denied is None


@pytest.mark.parametrize(
    ("before", "after", "want"),
    [
        ({"size": "1Gi"}, {"size": "2Gi"}, "spec.checkpoint.size cannot be changed from 1Gi to 2Gi"),
        ({}, {"size": "2Gi"}, "spec.checkpoint.size cannot be changed from its default to 2Gi"),
        ({"storageClassName": "fast"}, {}, "spec.checkpoint.storageClassName cannot be changed from fast to its def"),
        ({"accessMode": "ReadWriteOnce"}, {"accessMode": "ReadWriteMany"}, "spec.checkpoint.accessMode cannot be"),
        ({"size": "1Gi"}, {"size": "1Gi"}, None),
        ({"size": "1Gi"}, {"claimName": "mine"}, None),
        ({"claimName": "mine"}, {"size": "1Gi"}, None),
        ({}, {"gracePeriodSeconds": 60}, None),
    ],
)
def test_what_a_claim_was_made_with_stays(before, after, want):
    old, new = (manifest(checkpointDir="/checkpoints", checkpoint=part) for part in (before, after))
    refused = admit(new, old).denied
    assert refused is None if want is None else refused.startswith(want)


@pytest.mark.parametrize(("before", "after", "warned"), [(1, 4, True), (2, 4, False), (4, 1, False)])
def test_a_claim_for_one_pod_is_no_surprise_when_there_are_more(before, after, warned):
    old, new = (manifest(checkpointDir="/checkpoints", workers=workers) for workers in (before, after))
    admission_response = admit(new, old)
    assert admission_response.denied is None
    assert [("mnist-checkpoints" in warning) for warning in admission_response.warnings] == [True] * warned


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"checkpoint": {"gracePeriodSeconds": 60}}, "set it, for example to /checkpoints."),
        ({"command": ["python train.py"]}, 'write ["python","train.py"], unless it is a file.'),
        ({"hyperparameters": {"seed": 2**53 + 1}}, "write it as a string, in quotes."),
        ({"hyperparameters": {"seed": -(10**20)}}, "write it as a string, in quotes."),
        ({"hyperparameters": {"clip": 1e20}}, None),
        ({"checkpoint": {"size": "1Gi"}}, None),
        ({"command": ["python", "train.py"], "hyperparameters": {"seed": 2**53, "lr": 0.1, "on": True}}, None),
    ],
)
def test_what_is_probably_not_meant_is_said_once(spec, said):
    warnings = admit(manifest(**spec), None).warnings
    assert [warning.endswith(said or "") for warning in warnings] == [True] * (said is not None)
    assert admit(manifest(**spec, suspend=True), manifest(**spec)).warnings == ()


@pytest.mark.parametrize(
    ("change", "phase", "warned"),
    [
        ({"image": "trainer:2"}, "Succeeded", True),
        ({"image": "trainer:2"}, "Running", False),
        ({"runPolicy": {"ttlSecondsAfterFinished": 1}}, "Failed", False),
    ],
)
def test_a_change_of_what_has_ended_is_said_to_do_nothing(change, phase, warned):
    before = {**manifest(), "status": {"phase": phase}}
    warnings = admit({**manifest(**change), "status": {"phase": phase}}, before).warnings
    assert ["delete the TrainingJob and create it again" in warning for warning in warnings] == [True] * warned


@pytest.mark.parametrize("amount", ["4GB", "4Gib", "4gb"])
def test_an_amount_with_a_unit_of_its_own_is_refused_with_those_that_could_be_meant(amount):
    refused = admit(manifest(resources={"limits": {"memory": amount}}), None).denied
    assert refused == f"spec.resources.limits.memory is {amount}, which is not a quantity: write 4Gi or 4G."


def test_only_changed_wishes_are_asked_about():
    assert HOOK.path == "/admit/trainingjobs"
    assert [rule["resources"] for rule in HOOK.rules] == [["trainingjobs"]]
    assert dict(HOOK.match_conditions)["spec-changed"] == "oldObject == null || object.spec != oldObject.spec"


def modal_job(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "modal-operator.io/v1alpha1",
        "kind": "ModalJob",
        "metadata": {"name": "hello", "namespace": "ml-jobs"},
        "spec": {"image": "python:3.11-slim", **spec},
    }


@pytest.mark.parametrize(
    ("spec", "refusal"),
    [
        ({"cpu": "-1"}, "spec.cpu is -1, which is not above 0: write 0.5 or 2.0."),
        ({"cpu": "0"}, "spec.cpu is 0, which is not above 0: write 0.5 or 2.0."),
        ({"memory": "-1Gi"}, "spec.memory is -1Gi, which is not above 0: write 512Mi or 4Gi."),
        ({"env": {"": "x"}}, "spec.env has a variable without a name: give it a name, such as EPOCHS."),
        (
            {"env": {"A=B": "x"}},
            "spec.env has the variable 'A=B', whose name is not valid: use printable ASCII characters other than =.",
        ),
        (
            {"env": {"ä": "x"}},
            "spec.env has the variable 'ä', whose name is not valid: use printable ASCII characters other than =.",
        ),
        ({"gpu": "T4:x"}, "spec.gpu is T4:x: write a type, or a type and a count, such as T4, A100-80GB or H100:2."),
        (
            {"gpu": "T4:9"},
            "spec.gpu asks for 9 GPUs of one container: ask for at most 8, and set replicas.",
        ),
    ],
)
def test_modal_job_with_invalid_field_is_rejected_with_the_fix(spec, refusal):
    assert MODAL_JOB_HOOK.admit(modal_job(**spec), None).denied == refusal
    assert MODAL_JOB_HOOK.admit(modal_job(**spec, timeout=60), modal_job(**spec)).denied is None


def test_modal_job_with_valid_fields_is_admitted():
    spec = {"cpu": "0.5", "memory": "16Gi", "gpu": "A100-80GB:8", "env": {"EPOCHS": "100", "my.key": ""}}
    assert MODAL_JOB_HOOK.admit(modal_job(**spec), None).denied is None
    assert MODAL_JOB_HOOK.path == "/admit/modaljobs"
