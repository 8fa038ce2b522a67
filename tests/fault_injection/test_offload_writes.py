"""A pod at a cloud when nothing goes wrong, and when writes to the API server do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulation import runner
from tests.simulation.cloud_scenarios import SCENARIOS, reference
from tests.simulation.faults import WRITE_TROUBLES

if TYPE_CHECKING:
    from tests.simulation.coverage_report import Checker


@pytest.mark.parametrize("name", SCENARIOS)
def test_an_undisturbed_run_wastes_nothing(name: str) -> None:
    outcome = reference(name)
    assert outcome.errors == []
    assert outcome.bill.wrong == []
    assert outcome.bill.doubled == []
    assert outcome.calls, "a launch or an end, at least"


@pytest.mark.parametrize("what", WRITE_TROUBLES)
@pytest.mark.parametrize("name", SCENARIOS)
def test_trouble_with_a_write_changes_nothing(name: str, what: str, court: Checker) -> None:
    faults = runner.faults_for(reference(name), "write", what)
    assert court.violations(SCENARIOS[name], reference(name), faults) == []
