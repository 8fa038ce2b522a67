"""A pod at a cloud when the operator crashes, is doubled, or is paused after any of its effects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulation import runner
from tests.simulation.cloud_scenarios import SCENARIOS, reference
from tests.simulation.faults import InjectedFault
from tests.support import sampling

if TYPE_CHECKING:
    from tests.simulation.coverage_report import Checker

# So many effects of the first process, and so many of the one after it.
_FIRST = 5


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_crash_after_any_effect_changes_nothing(name: str, court: Checker) -> None:
    """Writes to the API server and calls to the cloud, in one sequence."""
    court.knows(reference(name))
    faults = runner.faults_for(reference(name), "effect", "crash")
    assert court.violations(SCENARIOS[name], reference(name), faults) == []


@pytest.mark.parametrize("what", ["twin", "pause", "stall"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_second_operator_changes_nothing(name: str, what: str, court: Checker) -> None:
    """Beside the first one, which is slow in a stall; or in its place, until the first one wakes up from a pause."""
    faults = runner.faults_for(reference(name), "effect", what)
    assert court.violations(SCENARIOS[name], reference(name), faults) == []


@pytest.mark.parametrize("first", range(1, _FIRST + 1))
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_crash_while_recovering_from_a_crash_changes_nothing(name: str, first: int, court: Checker) -> None:
    # A story may have fewer effects than that.
    for second in sampling.sample(range(1, _FIRST + 1)) if first <= len(reference(name).effects) else ():
        fault = InjectedFault("effect", first, "crash", then=InjectedFault("effect", second, "crash"))
        verdict = court.check(SCENARIOS[name], reference(name), fault)
        assert verdict.wrong == []
        if verdict.outcome is None or verdict.outcome.struck == 1:
            break  # there was less left to do
