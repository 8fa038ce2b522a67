"""A gang at a cloud is launched once, whole, and ends whole, wherever the operator crashes."""

from __future__ import annotations

import pytest

from tests.simulation import runner
from tests.simulation.cloud_gangs import SCENARIOS, reference


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_gang_has_one_instance_and_leaves_none(name: str) -> None:
    outcome = reference(name)
    assert outcome.bill.wrong == []
    assert outcome.bill.at_once == 1
    assert outcome.errors == []


@pytest.mark.parametrize("what", ["crash", "twin"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_crash_or_a_second_operator_after_any_effect_changes_nothing(name: str, what: str) -> None:
    expected = reference(name)
    wrong = {}
    for fault in runner.faults_for(expected, "effect", what):
        verdict = runner.check(SCENARIOS[name], expected, fault)
        if verdict.wrong:
            wrong[str(fault)] = verdict.wrong
    assert wrong == {}
