"""Prints how many disturbed runs there were, by trouble: the number is part of the claim."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counts: Counter[str] = Counter()
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, ()):
            if "tests/simulation" in report.nodeid:
                counts.update({str(name): int(count) for name, count in report.user_properties})
    if counts:
        terminalreporter.section(f"simulation: {counts.total()} disturbed runs")
        for trouble, count in counts.items():
            terminalreporter.write_line(f"{count:6} {trouble}")
