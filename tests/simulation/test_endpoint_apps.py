"""Endpoints and functions as Apps: whatever goes wrong, each live object has one App at rest, and nothing else runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulation import runner
from tests.simulation.endpoint_apps import SCENARIOS, reference

if TYPE_CHECKING:
    from tests.simulation.coverage_report import Checker


@pytest.mark.parametrize("name", SCENARIOS)
def test_apps_crash_after_any_effect_leaves_one_app_for_each_object(name: str, court: Checker) -> None:
    court.knows(reference(name))
    faults = runner.faults_for(reference(name), "effect", "crash")
    assert court.violations(SCENARIOS[name], reference(name), faults) == []


def test_apps_lost_reply_to_a_write_leaves_one_app_for_each_object(court: Checker) -> None:
    """The operator reads the object of the write, as it does not know whether it was written."""
    name = "endpoint and function deleted"
    faults = runner.faults_for(reference(name), "write", "reply lost, done")
    assert court.violations(SCENARIOS[name], reference(name), faults) == []
