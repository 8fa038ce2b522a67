"""Where a model stands, in the words of its kind."""

from __future__ import annotations

import msgspec
import pytest

from skysail.base.names import Condition, Reason
from skysail.kinds.serving.api.types import MLModelStatus
from skysail.kinds.serving.plan import pending as pending_module
from skysail.kinds.serving.plan import status
from skysail.kinds.serving.plan.status import ConditionValue, ModelState
from tests.unit.kinds.serving.builders import ago, at, condition, deployment, entry, model, said, server, shown


def view(**fields):
    known = {"stage": "Prepare", "is_moving": True, "reason": Reason.DOWNLOADING, "message": "It is on its way."}
    return ModelState(**{**known, **fields})


@pytest.mark.parametrize(
    ("stage", "as_deployment", "as_ml_model"),
    [
        ("Pending", "Pending", "Pending"),
        ("Storage", "Validating", "CreatingStorage"),
        ("Prepare", "Validating", "Downloading"),
        ("Deploy", "Deploying", "Serving"),
        ("Failed", "Failed", "Failed"),
    ],
)
def test_each_kind_has_its_own_words_for_a_stage(stage, as_deployment, as_ml_model):
    for is_ml, phase in ((False, as_deployment), (True, as_ml_model)):
        found = status.build(at(model(ml=is_ml)), view(stage=stage))
        assert (found.phase, found.observed_generation, found.message) == (phase, 1, "It is on its way.")


def test_whatever_is_on_its_way_a_model_that_answers_is_ready():
    of = model()
    old = entry(of, 1, "served")
    found = status.build(at(of, old, deployment(old), server(of)), view(served=old, candidate="next"))
    assert (found.phase, found.revision, found.candidate) == ("Ready", 1, "next")
    assert said(found, Condition.READY) == ("True", Reason.SERVED)
    assert found.message == "It is on its way."


def test_status_served_model_without_answer_gives_reason_not_rollout_progress():
    of = model()
    old = entry(of, 1, "served")
    pending = server(of, ready=False, unscheduled="0/1 nodes are available.")
    found = status.build(at(of, old, deployment(old, available=0), pending), view(served=old))
    told = condition(found, Condition.READY)
    assert (told.status, told.reason) == ("False", Reason.INSUFFICIENT_RESOURCES)


def test_the_time_of_a_condition_moves_only_with_its_status():
    of = model()
    first = status.build(at(of), view())
    later = at(shown(of, conditions=first.conditions))
    second = status.build(msgspec.structs.replace(later, now=later.now.replace(hour=13)), view(message="Still."))
    assert condition(second, Condition.PROGRESSING).last_transition_time == ago(0)
    assert condition(second, Condition.PROGRESSING).message == "Still."


def test_what_never_was_is_not_told():
    found = status.build(at(model()), view())
    assert {row.type for row in found.conditions} == {"Accepted", "Progressing", "Ready"}
    with_it = status.build(at(model()), view(update_failed=ConditionValue("True", Reason.NOT_FOUND, "Nothing there.")))
    without = status.build(at(shown(model(), conditions=with_it.conditions)), view())
    assert said(without, Condition.UPDATE_FAILED) == ("False", Reason.UPDATED)


def test_sentences_are_not_longer_than_a_status_takes():
    found = status.build(at(model()), view(message="x" * 99_999))
    assert len(found.message) == len(condition(found, Condition.PROGRESSING).message) == 4096


def test_only_an_ml_model_says_that_it_ends():
    gone = {"deletion_timestamp": ago(1), "generation": 2}
    found = status.terminating(at(model(ml=True, metadata=gone)))
    assert (found.phase, found.observed_generation) == ("Terminating", 2)
    of = model(metadata=gone)
    assert status.terminating(at(of)) == of.status


def test_a_first_status_of_an_ml_model_has_what_its_schema_requires():
    found = msgspec.to_builtins(MLModelStatus(phase="Pending", observed_generation=0))
    assert {"phase", "observedGeneration"} <= found.keys()


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (12_345_678, "12.3 MB"),
        (5 * 10**12, "5.0 TB"),
        (10**16, "10000.0 TB"),
    ],
)
def test_sizes_are_shown_as_people_read_them(amount, text):
    assert pending_module.size(amount) == text
