"""The volume of a TrainingJob at a cloud goes with it exactly if the spec says so, wherever the operator crashes."""

from __future__ import annotations

import pytest

from skysail.kinds.training.api.training_job import TRAINING_JOB
from tests.simulation import runner
from tests.simulation.cloud_checkpoints import DELETES, SCENARIOS, reference


@pytest.mark.parametrize("name", SCENARIOS)
def test_volume_is_deleted_exactly_if_the_spec_says_so(name: str) -> None:
    outcome = reference(name)
    calls = [effect for effect in outcome.effects if effect.method == "DELETE VOLUME"]
    assert bool(calls) == DELETES[name]
    assert (outcome.bill.wrong, outcome.errors) == ([], [])
    left = [line for line in outcome.end if line.startswith(TRAINING_JOB.resource.kind)]
    assert bool(left) == (name == "not deleted yet")


@pytest.mark.parametrize("what", ["crash", "twin", "crash before", "lost, done", "lost, not done", "throttled"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_trouble_at_any_effect_changes_nothing(name: str, what: str) -> None:
    expected = reference(name)
    wrong = {}
    for fault in runner.faults_for(expected, "effect" if what in {"crash", "twin"} else "call", what):
        verdict = runner.check(SCENARIOS[name], expected, fault)
        if verdict.wrong:
            wrong[str(fault)] = verdict.wrong
    assert wrong == {}
