"""A pod at a cloud that does not answer, answers wrongly, refuses, or is away for long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulation import runner
from tests.simulation.cloud_scenarios import SCENARIOS, reference
from tests.simulation.clouds import CALL_REFUSALS, CALL_TROUBLES, SURVEY_TROUBLES
from tests.simulation.outages import LASTING

if TYPE_CHECKING:
    from tests.simulation.coverage_report import Checker


@pytest.mark.parametrize("what", CALL_TROUBLES)
@pytest.mark.parametrize("name", SCENARIOS)
def test_trouble_with_a_call_changes_nothing(name: str, what: str, court: Checker) -> None:
    faults = runner.faults_for(reference(name), "call", what)
    assert court.violations(SCENARIOS[name], reference(name), faults) == []


@pytest.mark.parametrize("what", LASTING)
@pytest.mark.parametrize("name", SCENARIOS)
def test_trouble_that_lasts_changes_nothing(name: str, what: str, court: Checker) -> None:
    faults = runner.faults_for(reference(name), "call", what)
    assert court.violations(SCENARIOS[name], reference(name), faults) == []


@pytest.mark.parametrize("what", SURVEY_TROUBLES)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_cloud_that_lies_about_what_it_runs_changes_nothing(name: str, what: str, court: Checker) -> None:
    faults = runner.faults_for(reference(name), "survey", what)
    assert court.violations(SCENARIOS[name], reference(name), faults) == []


@pytest.mark.parametrize("what", CALL_REFUSALS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_refusal_wastes_nothing(name: str, what: str, court: Checker) -> None:
    """The end may be another one; what was paid for is not."""
    faults = runner.faults_for(reference(name), "call", what)
    assert court.waste(SCENARIOS[name], reference(name), faults) == []
