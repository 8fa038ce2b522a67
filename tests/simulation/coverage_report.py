"""Counts what the simulation has shown, so that the build can print it: a number that is not told may shrink unseen."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.simulation import runner
from tests.simulation.outages import LASTING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pytest

    from tests.simulation.faults import InjectedFault
    from tests.simulation.runner import Outcome, Scenario, Verdict

    Record = Callable[[str, object], None]

_PLACES = ("tests/simulation/", "tests/fault_injection/")
_KNOWN = "effects known"
_ORPHANS = "orphans"
_MOST = "billed at once"
_RUN = "run: "
_CRASHES = "crash after an effect"
_SECOND_CRASHES = "second crash"


class Checker:
    """Judges disturbed runs of one test, and counts them. `close` tells the counts."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._counts: Counter[str] = Counter()
        self._most = 0

    def knows(self, outcome: Outcome) -> None:
        """How many effects there are after which a crash has to be shown."""
        self._counts[_KNOWN] += len(outcome.effects)

    def violations(self, scenario: Scenario, expected: Outcome, faults: Iterable[InjectedFault]) -> list[str]:
        return [line for fault in faults for line in self.check(scenario, expected, fault).wrong]

    def waste(self, scenario: Scenario, expected: Outcome, faults: Iterable[InjectedFault]) -> list[str]:
        """Errors and wrong bills of runs that may end in another way than the expected one."""
        found: list[str] = []
        for fault in faults:
            outcome = self.check(scenario, expected, fault).outcome
            rows = ["no end"] if outcome is None else [*outcome.errors, *outcome.bill.wrong]
            found += [f"{fault}: {row}" for row in rows]
        return found

    def check(self, scenario: Scenario, expected: Outcome, fault: InjectedFault) -> Verdict:
        verdict = runner.check(scenario, expected, fault)
        self._counts[_RUN + _row(fault)] += 1
        if verdict.outcome is not None:
            self._counts[_ORPHANS] += verdict.outcome.bill.orphans
            self._most = max(self._most, verdict.outcome.bill.at_once)
        return verdict

    def close(self) -> None:
        for name, count in (self._counts | {_MOST: self._most}).items():
            self._record(name, count)


class CoverageReport:
    """What the reports of a test run say. They come from the workers, if there are several."""

    def __init__(self, passed: Iterable[pytest.TestReport], failed: Iterable[pytest.TestReport]) -> None:
        self._passed = [report for report in passed if report.nodeid.startswith(_PLACES)]
        self._reports = [*self._passed, *(report for report in failed if report.nodeid.startswith(_PLACES))]
        self._counts: Counter[str] = Counter()
        self._most = 0
        for report in self._reports:
            told = {str(name): int(str(count)) for name, count in report.user_properties}
            self._most = max(self._most, told.pop(_MOST, 0))
            self._counts.update(told)

    def lines(self) -> list[str]:
        """Nothing, where no disturbed run was played."""
        runs = {name.removeprefix(_RUN): count for name, count in self._counts.items() if name.startswith(_RUN)}
        if not runs:
            return []
        total, seconds = sum(runs.values()), sum(report.duration for report in self._reports if report.user_properties)
        rows = [
            ("effects covered by a crash / known", f"{runs.get(_CRASHES, 0):,} / {self._counts[_KNOWN]:,}"),
            *((f"runs with trouble: {name}", f"{count:,}") for name, count in runs.items() if name != _CRASHES),
            ("incidents of others, told again", self._share("test_incidents.py")),
            ("seeded faults killed", self._share("test_seeded_faults.py::test_a_seeded_fault_is_found")),
            ("largest number of billable instances per claim", f"{self._most}"),
            ("orphans at the end of all runs", f"{self._counts[_ORPHANS]}"),
            ("disturbed runs", f"{total:,}, {total / seconds:.0f} per second and process"),
        ]
        return [f"{text:<52} {figure:>10}" for text, figure in rows]

    def _share(self, tests: str) -> str:
        return f"{_number(self._passed, tests)} / {_number(self._reports, tests)}"


def _number(reports: Iterable[pytest.TestReport], tests: str) -> int:
    return sum(1 for report in reports if f"/{tests}" in report.nodeid)


def _row(fault: InjectedFault) -> str:
    """Which line of the board a run counts for."""
    if fault.then is not None:
        return _SECOND_CRASHES
    if fault.back:
        return "(event, end) pairs, back in time"
    if fault.on == "effect":
        return _CRASHES if fault.what == "crash" else f"{fault.what} at an effect"
    if fault.what in LASTING:
        return "something that lasts, at a call"
    return "(event, perturbation) pairs" if fault.on == "event" else f"({fault.on}, fault) pairs"
