"""A pod at a cloud when the API server tells changes wrongly, late, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulation import runner
from tests.simulation.cloud_scenarios import SCENARIOS, reference
from tests.simulation.faults import EVENT_TROUBLES, InjectedFault

if TYPE_CHECKING:
    from tests.simulation.coverage_report import Checker

# So many changes before something ended: from "nobody wants an end yet" to "it is being ended".
_BACK = 8


@pytest.mark.parametrize("what", EVENT_TROUBLES)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_watch_that_lies_changes_nothing(name: str, what: str, court: Checker) -> None:
    faults = runner.faults_for(reference(name), "event", what)
    assert court.violations(SCENARIOS[name], reference(name), faults) == []


@pytest.mark.parametrize("name", SCENARIOS)
def test_an_operator_that_is_told_the_past_after_an_end_changes_nothing(name: str, court: Checker) -> None:
    ends = [at for at, effect in enumerate(reference(name).effects, start=1) if effect.is_end]
    faults = [InjectedFault("effect", at, "crash", back=back) for at in ends for back in range(1, _BACK + 1)]
    assert faults
    assert court.violations(SCENARIOS[name], reference(name), faults) == []
