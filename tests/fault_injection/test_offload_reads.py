"""A pod at a cloud when the API server does not answer what it is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulation import runner
from tests.simulation.cloud_scenarios import SCENARIOS, reference
from tests.simulation.faults import READ_TROUBLES

if TYPE_CHECKING:
    from tests.simulation.coverage_report import Checker


@pytest.mark.parametrize("what", READ_TROUBLES)
@pytest.mark.parametrize("name", SCENARIOS)
def test_trouble_with_a_read_changes_nothing(name: str, what: str, court: Checker) -> None:
    faults = runner.faults_for(reference(name), "read", what)
    assert court.violations(SCENARIOS[name], reference(name), faults) == []
