"""A pod at a cloud when the operator crashes, is doubled, or is paused after any of its effects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulation import runner
from tests.simulation.cloud_scenarios import SCENARIOS, reference
from tests.simulation.faults import Trouble
from tests.support import sampling

if TYPE_CHECKING:
    from tests.simulation.coverage_report import Court

# So many effects of the first process, and so many of the one after it.
_FIRST = 5


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_crash_after_any_effect_changes_nothing(name: str, court: Court) -> None:
    """Writes to the API server and calls to the cloud, in one sequence."""
    court.knows(reference(name))
    troubles = runner.troubles(reference(name), "effect", "crash")
    assert court.complaints(SCENARIOS[name], reference(name), troubles) == []


@pytest.mark.parametrize("what", ["twin", "pause", "stall"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_second_operator_changes_nothing(name: str, what: str, court: Court) -> None:
    """Beside the first one, which is slow in a stall; or in its place, until the first one wakes up from a pause."""
    troubles = runner.troubles(reference(name), "effect", what)
    assert court.complaints(SCENARIOS[name], reference(name), troubles) == []


@pytest.mark.parametrize("first", range(1, _FIRST + 1))
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_crash_while_recovering_from_a_crash_changes_nothing(name: str, first: int, court: Court) -> None:
    # A story may have fewer effects than that.
    for second in sampling.sample(range(1, _FIRST + 1)) if first <= len(reference(name).effects) else ():
        trouble = Trouble("effect", first, "crash", then=Trouble("effect", second, "crash"))
        verdict = court.judge(SCENARIOS[name], reference(name), trouble)
        assert verdict.wrong == []
        if verdict.outcome is None or verdict.outcome.struck == 1:
            break  # there was less left to do
