"""A judge for disturbed runs, and the scoreboard that the build prints at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulation.scoreboard import Court, Scoreboard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def court(record_property: Callable[[str, object], None]) -> Iterator[Court]:
    court = Court(record_property)
    yield court
    court.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    stats = terminalreporter.stats
    lines = Scoreboard(_calls(stats.get("passed", [])), _calls(stats.get("failed", []))).lines()
    if lines:
        terminalreporter.section("simulation: scoreboard")
    for line in lines:
        terminalreporter.write_line(line)


def _calls(reports: list[pytest.TestReport]) -> list[pytest.TestReport]:
    return [report for report in reports if report.when == "call"]
