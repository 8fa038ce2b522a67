"""A pod at RunPod, at the service's wire, when the operator crashes, is doubled, or loses an answer at any request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulation import runner
from tests.simulation.clouds import CALL_REFUSALS, CALL_TROUBLES, SURVEY_TROUBLES
from tests.simulation.faults import InjectedFault
from tests.simulation.runpod_scenarios import SCENARIOS, disturbed, reference
from tests.support import sampling

if TYPE_CHECKING:
    from tests.simulation.coverage_report import Checker

# Effects of the first process, and of the process after it.
_FIRST = 5
# The simulated cloud shows these in every sample.
_whole_only = pytest.mark.skipif(not sampling.IS_WHOLE, reason="part of `make test-launches` without a sample")


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_crash_after_any_effect_pays_once_and_leaves_nothing(name: str, court: Checker) -> None:
    """Writes to the API server and requests to RunPod, in one sequence."""
    court.knows(reference(name))
    faults = runner.faults_for(reference(name), "effect", "crash")
    assert court.violations(SCENARIOS[name], reference(name), faults) == []


@pytest.mark.parametrize("what", ["twin", "pause"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_second_operator_pays_once(name: str, what: str, court: Checker) -> None:
    faults = runner.faults_for(reference(name), "effect", what)
    assert court.violations(SCENARIOS[name], reference(name), faults) == []


@pytest.mark.parametrize("what", CALL_TROUBLES)
@pytest.mark.parametrize("name", SCENARIOS)
def test_trouble_with_a_request_changes_nothing(name: str, what: str, court: Checker) -> None:
    scenario, expected = disturbed(name, what)
    faults = runner.faults_for(expected, "call", what)
    assert court.violations(scenario, expected, faults) == []


@pytest.mark.parametrize("what", CALL_REFUSALS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_refusal_wastes_nothing(name: str, what: str, court: Checker) -> None:
    """The end may be another one; what was paid for is not."""
    faults = runner.faults_for(reference(name), "call", what)
    assert court.waste(SCENARIOS[name], reference(name), faults) == []


@_whole_only
@pytest.mark.parametrize("what", SURVEY_TROUBLES)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_list_that_lies_changes_nothing(name: str, what: str, court: Checker) -> None:
    faults = runner.faults_for(reference(name), "survey", what)
    assert court.violations(SCENARIOS[name], reference(name), faults) == []


@_whole_only
@pytest.mark.parametrize("first", range(1, _FIRST + 1))
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_crash_while_recovering_from_a_crash_changes_nothing(name: str, first: int, court: Checker) -> None:
    for second in sampling.sample(range(1, _FIRST + 1)) if first <= len(reference(name).effects) else ():
        fault = InjectedFault("effect", first, "crash", then=InjectedFault("effect", second, "crash"))
        verdict = court.check(SCENARIOS[name], reference(name), fault)
        assert verdict.wrong == []
        if verdict.outcome is None or verdict.outcome.struck == 1:
            break  # there was less left to do
