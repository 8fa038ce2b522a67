from __future__ import annotations

from typing import Any

import pytest

from skysail.kinds.run.admit import HOOKS, admit

WRONG = {"hyperparameters": {"layers": [64]}}


def manifest(*, metadata: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    wanted = {"framework": "pytorch", "image": "trainer:1", "command": ["train"], **spec}
    return {
        "apiVersion": "ml.example.com/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "mnist", "namespace": "ml-jobs", **(metadata or {})},
        "spec": wanted,
    }


def test_a_new_job_is_refused_with_every_objection():
    refused = admit(manifest(**WRONG, checkpointDir="/"), None).refused or ""
    assert "spec.hyperparameters.layers" in refused
    assert "spec.checkpointDir" in refused


def test_nothing_is_written():
    """The schema has the defaults; so that asking twice changes nothing more."""
    assert admit(manifest(), None).patch == ()


def test_a_job_whose_name_the_server_will_make_is_looked_at_too():
    unnamed = manifest(**WRONG)
    unnamed["metadata"] = {"generateName": "mnist-", "namespace": "ml-jobs"}
    assert admit(unnamed, None).refused is not None


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
    assert admit(object_, None).refused is None


def test_what_was_wrong_before_can_still_be_changed_otherwise():
    held = manifest(**WRONG, suspend=True)
    assert admit(held, manifest(**WRONG)).refused is None


def test_only_what_a_change_makes_wrong_is_named():
    refused = admit(manifest(**WRONG, checkpointDir="/"), manifest(**WRONG)).refused or ""
    assert refused.startswith("spec.checkpointDir is /")
    assert "layers" not in refused


def test_a_job_that_goes_is_let_go():
    going = manifest(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}, **WRONG)
    assert admit(going, manifest()).refused is None


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
    refused = admit(new, old).refused
    assert refused is None if want is None else refused.startswith(want)


@pytest.mark.parametrize(("before", "after", "warned"), [(1, 4, True), (2, 4, False), (4, 1, False)])
def test_a_claim_for_one_pod_is_no_surprise_when_there_are_more(before, after, warned):
    old, new = (manifest(checkpointDir="/checkpoints", workers=workers) for workers in (before, after))
    verdict = admit(new, old)
    assert verdict.refused is None
    assert [("mnist-checkpoints" in warning) for warning in verdict.warnings] == [True] * warned


def test_only_changed_wishes_are_asked_about():
    (hook,) = HOOKS
    assert hook.path == "/admit/trainingjobs"
    assert [rule["resources"] for rule in hook.rules] == [["trainingjobs"]]
    assert dict(hook.match_conditions)["wishes-changed"] == "oldObject == null || object.spec != oldObject.spec"
