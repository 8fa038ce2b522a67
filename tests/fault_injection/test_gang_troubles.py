"""A TrainingJob with a gang scheduler under every trouble with effects, writes, reads and watches, in every story."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulation import runner
from tests.simulation.gangs import SCENARIOS, reference

if TYPE_CHECKING:
    from tests.simulation.coverage_report import Checker
    from tests.simulation.faults import On


@pytest.mark.parametrize(("on", "what"), runner.KINDS, ids=[f"{on}: {what}" for on, what in runner.KINDS])
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_gang_comes_to_the_same_end_whatever_goes_wrong(name: str, on: On, what: str, court: Checker) -> None:
    expected = reference(name)
    if what == "crash":
        court.knows(expected)
    assert court.violations(SCENARIOS[name], expected, runner.faults_for(expected, on, what)) == []
