"""Stories about budgets without trouble, and a few with it. `tests/fault_injection` has all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from skysail.base.timestamps import from_seconds
from skysail.cloud.simulated import billing
from tests.simulation import runner
from tests.simulation.budgets import SCENARIOS, broken_without_operator, reference
from tests.simulation.faults import InjectedFault
from tests.simulation.offload import CLUSTER
from tests.simulation.spending import billed

if TYPE_CHECKING:
    from skysail.cloud.simulated.ledger import Row
    from tests.simulation.coverage_report import Checker
    from tests.simulation.runner import Outcome

# What the cloud bills in each period, in US dollars.
BILLS = {
    "shared until used up": {"2026-01-01": 0.125},
    "cap of a Job": {"2026-01-01": 0.015},
    "the next Day": {"2026-01-01": 0.05, "2026-01-02": 0.05},
    "the next Week": {"2026-01-04": 0.05, "2026-01-05": 0.05},
    "the next Month": {"2026-01-31": 0.05, "2026-02-01": 0.05},
}
# Effects between which a few troubles come.
_STEP = 6
_TROUBLED = ("shared until used up", "dearer than offered", "cap of a Job", "the next Day")


class Run:
    """One undisturbed run, with the ledger of its cloud."""

    def __init__(self, name: str) -> None:
        scenario = SCENARIOS[name]
        assert scenario.outside is not None
        markets: list[Any] = []

        def opened() -> Any:
            markets.append(scenario.outside())
            return markets[-1]

        self.outcome: Outcome = runner.play(msgspec.structs.replace(scenario, outside=opened), None)
        self.rows: list[Row] = list(billing.rows_of_cluster(markets[0].ledger.rows, CLUSTER))


@pytest.mark.parametrize("name", SCENARIOS)
def test_budget_story_without_trouble_breaks_no_rule(name: str) -> None:
    assert (reference(name).errors, reference(name).bill.wrong) == ([], [])


@pytest.mark.parametrize("name", BILLS)
def test_budget_is_used_up_and_not_exceeded(name: str) -> None:
    bills = billed(Run(name).rows, "Day")
    assert bills == {day: pytest.approx(usd, abs=1e-4) for day, usd in BILLS[name].items()}


def test_budget_for_whole_lifetimes_runs_one_after_the_other() -> None:
    rows = [row for row in Run("whole lifetimes only").rows if row.verb in {"create", "ended"}]
    assert [row.verb for row in rows] == ["create", "ended"] * 3
    assert {row.seconds for row in rows if row.verb == "create"} == {1800.0}


def test_instance_limit_of_one_runs_one_after_the_other() -> None:
    rows = [row.verb for row in Run("one place").rows if row.verb in {"create", "ended"}]
    assert rows == ["create", "ended"] * 3


def test_instance_dearer_than_its_reserve_is_terminated_at_once() -> None:
    run = Run("dearer than offered")
    seconds = {row.verb: row.at for row in run.rows}
    assert seconds["ended"] - seconds["create"] < 60, from_seconds(seconds["create"])
    (container,) = run.outcome.end["Pod train"]["status"]["containerStatuses"]
    assert container["state"]["terminated"]["reason"] == "BudgetExhausted"


def test_claim_without_capacity_leaves_its_money_to_others() -> None:
    creates = [row.seconds for row in Run("no capacity for a while").rows if row.verb == "create"]
    assert creates[-1] == 1800.0


@pytest.mark.parametrize("what", ["crash", "twin"])
@pytest.mark.parametrize("name", _TROUBLED)
def test_budget_story_with_trouble_breaks_no_rule(name: str, what: str, court: Checker) -> None:
    expected = reference(name)
    if what == "crash":
        court.knows(expected)
    for at in range(2, len(expected.effects), _STEP):
        verdict = court.check(SCENARIOS[name], expected, InjectedFault("effect", at, what))
        assert verdict.outcome is not None, verdict.wrong
        assert (at, verdict.outcome.errors, verdict.outcome.bill.wrong) == (at, [], [])


def test_budget_operator_dead_for_good_instances_end_with_their_reserve(court: Checker) -> None:
    """The cloud ends what no operator can."""
    name = "shared until used up"
    for at in range(1, len(reference(name).effects) + 1, _STEP):
        verdict = court.check(SCENARIOS[name], reference(name), InjectedFault("effect", at, "death"))
        assert verdict.outcome is not None, verdict.wrong
        assert (at, broken_without_operator(verdict.outcome), verdict.outcome.bill.unended) == (at, [], [])
