"""Budgets when the operator crashes, is doubled, dies for good, or when replies, writes and watch events go wrong.

Which pod gets the money may differ from run to run. The ledger judges: no period costs more than its budget and one
tick, no launch comes before its reservation, nothing stays reserved for a claim that has ended, and no cost is lost or
counted twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulation import runner
from tests.simulation.budgets import SCENARIOS, broken_without_operator, reference
from tests.simulation.clouds import CALL_TROUBLES
from tests.simulation.faults import EVENT_TROUBLES, WRITE_TROUBLES

if TYPE_CHECKING:
    from tests.simulation.coverage_report import Checker
    from tests.simulation.faults import On


def _judge(court: Checker, name: str, on: On, what: str) -> list[str]:
    wrong = []
    for fault in runner.faults_for(reference(name), on, what):
        verdict = court.check(SCENARIOS[name], reference(name), fault)
        if verdict.outcome is None:
            wrong += verdict.wrong
        else:
            wrong += [f"{fault}: {line}" for line in (*verdict.outcome.errors, *verdict.outcome.bill.wrong)]
    return wrong


@pytest.mark.parametrize("what", ["crash", "twin", "pause", "stall"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_budget_crash_or_second_operator_at_any_effect_holds(name: str, what: str, court: Checker) -> None:
    if what == "crash":
        court.knows(reference(name))
    assert _judge(court, name, "effect", what) == []


@pytest.mark.parametrize("what", WRITE_TROUBLES)
@pytest.mark.parametrize("name", SCENARIOS)
def test_budget_write_goes_wrong_holds(name: str, what: str, court: Checker) -> None:
    assert _judge(court, name, "write", what) == []


@pytest.mark.parametrize("what", CALL_TROUBLES)
@pytest.mark.parametrize("name", SCENARIOS)
def test_budget_call_goes_wrong_holds(name: str, what: str, court: Checker) -> None:
    assert _judge(court, name, "call", what) == []


@pytest.mark.parametrize("what", EVENT_TROUBLES)
@pytest.mark.parametrize("name", SCENARIOS)
def test_budget_watch_lies_holds(name: str, what: str, court: Checker) -> None:
    assert _judge(court, name, "event", what) == []


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "dearer than offered"])
def test_budget_operator_dead_for_good_instances_end_with_their_reserve(name: str, court: Checker) -> None:
    """The cloud ends what no operator can. A price that the cloud raises later is not in its hands."""
    for fault in runner.faults_for(reference(name), "effect", "death"):
        outcome = court.check(SCENARIOS[name], reference(name), fault).outcome
        assert outcome is not None, fault
        assert (fault, broken_without_operator(outcome), outcome.bill.unended) == (fault, [], [])
