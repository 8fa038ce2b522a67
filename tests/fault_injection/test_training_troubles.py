"""A TrainingJob under every trouble with effects, writes, reads and watches, in every story."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulation import runner
from tests.simulation.faults import InjectedFault
from tests.simulation.training import FLEETING, SCENARIOS, reference

if TYPE_CHECKING:
    from tests.simulation.coverage_report import Checker
    from tests.simulation.faults import On

# So many changes before something ended: back to where nobody had begun an attempt.
_BACK = 24
# So many effects of the first process, and so many of the one after it.
_FIRST = 5


# Who hears nothing for a while.
_DEAF = {("event", "delay"), ("event", "silence"), ("event", "deafness")}
_PLAYS = [
    (name, on, what)
    for name in SCENARIOS
    for on, what in runner.KINDS
    if not (name in FLEETING and (on, what) in _DEAF)
]


@pytest.mark.parametrize(("name", "on", "what"), _PLAYS, ids=[f"{name}-{on}: {what}" for name, on, what in _PLAYS])
def test_a_job_comes_to_the_same_end_whatever_goes_wrong(name: str, on: On, what: str, court: Checker) -> None:
    expected = reference(name)
    if what == "crash":
        court.knows(expected)
    assert court.violations(SCENARIOS[name], expected, runner.faults_for(expected, on, what)) == []


@pytest.mark.parametrize("first", range(1, _FIRST + 1))
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_crash_while_recovering_from_a_crash_changes_nothing(name: str, first: int, court: Checker) -> None:
    # A story may have fewer effects than that.
    for second in range(1, _FIRST + 1) if first <= len(reference(name).effects) else ():
        fault = InjectedFault("effect", first, "crash", then=InjectedFault("effect", second, "crash"))
        verdict = court.check(SCENARIOS[name], reference(name), fault)
        assert verdict.wrong == []
        if verdict.outcome is None or verdict.outcome.struck == 1:
            break  # there was less left to do


@pytest.mark.parametrize("name", SCENARIOS)
def test_an_operator_that_is_told_the_past_after_an_end_changes_nothing(name: str, court: Checker) -> None:
    ends = [at for at, effect in enumerate(reference(name).effects, start=1) if effect.is_end]
    faults = [InjectedFault("effect", at, "crash", back=back) for at in ends for back in range(1, _BACK + 1)]
    assert court.violations(SCENARIOS[name], reference(name), faults) == []
