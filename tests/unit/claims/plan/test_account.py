"""Plan of a SpendAccount: left-over reservations, warnings, periods."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from skysail.base.names import Condition, Reason
from skysail.claims.limits.offload_policy import Budget
from skysail.claims.limits.policy_check import PolicyBudget
from skysail.claims.limits.spend_account import DayTotal, Reservation, SpendAccountStatus
from skysail.claims.plan.account import AccountSnapshot, plan, rejected
from skysail.core import conditions
from skysail.core.actions import Event
from tests.unit.claims.samples import NOW, account, ago

TEN = (PolicyBudget("team", Budget(10.0, "Day")),)


def held(usd: float, name: str = "a") -> Reservation:
    return Reservation(claim=name, usd=usd, at=ago(60))


def seen(*reservations: Reservation, **fields: Any) -> AccountSnapshot:
    of = account(*reservations, **fields.pop("status", {}))
    return AccountSnapshot(**{"object": of, "now": NOW, "budgets": TEN, **fields})


def written(snapshot: AccountSnapshot) -> SpendAccountStatus:
    """The status after the plan, which is unchanged if the plan writes nothing."""
    fields = msgspec.to_builtins(snapshot.object.status)
    for action in plan(snapshot).actions:
        fields |= action.fields
    return msgspec.convert(fields, SpendAccountStatus)


def after(snapshot: AccountSnapshot, **fields: Any) -> AccountSnapshot:
    object_ = msgspec.structs.replace(snapshot.object, status=written(snapshot))
    return msgspec.structs.replace(snapshot, object=object_, **fields)


def state(snapshot: AccountSnapshot) -> tuple[str, str]:
    row = conditions.find_condition(written(snapshot).conditions, Condition.BUDGET_AVAILABLE)
    return row.status, row.reason


@pytest.mark.parametrize(
    ("reserved", "spent", "expected", "is_event"),
    [
        (0.0, 0.0, ("True", Reason.WITHIN_BUDGET), False),
        (4.0, 3.99, ("True", Reason.WITHIN_BUDGET), False),
        (4.0, 4.0, ("True", Reason.BUDGET_LOW), True),
        (6.0, 4.0, ("False", Reason.BUDGET_EXHAUSTED), True),
    ],
)
def test_account_says_how_much_is_used_once(reserved, spent, expected, is_event):
    totals = (DayTotal(day="2026-11-15", provider="modal", usd=spent),)
    of = seen(held(reserved), status={"totals": totals})
    assert state(of) == expected
    assert [event.warning for event in plan(of).events] == [True] * is_event
    assert (plan(after(of)).actions, plan(after(of)).events) == ((), ())


def test_account_launch_of_this_moment_is_no_reason_for_a_warning_yet():
    just_now = Reservation(claim="a", usd=10.0, at=ago(4))
    of = seen(just_now)
    assert (plan(of).actions, plan(of).events, plan(of).requeue_after) == ((), (), 6.0)
    assert state(seen(just_now, now=NOW + timedelta(seconds=6))) == ("False", Reason.BUDGET_EXHAUSTED)
    assert state(seen(Reservation(claim="a", usd=10.0, at=ago(-4)))) == ("False", Reason.BUDGET_EXHAUSTED)


def test_account_without_budget_has_no_condition():
    of = seen(held(9.0))
    assert written(after(of, budgets=())).conditions == ()
    assert plan(seen(held(9.0), budgets=())).actions == ()


def test_account_with_unknown_policies_keeps_its_condition():
    of = after(seen(held(9.0)), budgets=None)
    assert plan(of).actions == ()


def test_account_in_the_next_period_is_within_its_budget_again():
    totals = (DayTotal(day="2026-11-15", provider="modal", usd=10.0),)
    of = seen(status={"totals": totals})
    assert state(of) == ("False", Reason.BUDGET_EXHAUSTED)
    assert plan(of).requeue_after == 12 * 3600
    tomorrow = after(of, now=datetime(2026, 11, 16, tzinfo=UTC))
    assert (state(tomorrow), plan(tomorrow).events) == (("True", Reason.WITHIN_BUDGET), ())


def test_account_the_fullest_budget_counts():
    of = seen(held(9.0), budgets=(PolicyBudget("wide", Budget(900.0)), *TEN))
    message = conditions.find_condition(written(of).conditions, Condition.BUDGET_AVAILABLE).message
    assert "80% of the budget of 10 USD per day in OffloadPolicy team" in message


def test_account_releases_what_no_claim_needs():
    of = seen(held(9.0), held(1.0, "b"), budgets=(), absent_claims=frozenset({"a"}))
    assert written(of).reservations == (held(1.0, "b"),)
    assert plan(after(of, absent_claims=frozenset())).actions == ()


def test_account_rejected_write_is_an_event():
    of, event = seen(held(9.0)), Event("ReconcileFailed", "No.", warning=True)
    assert (rejected(of, event).status, rejected(of, event).events) == (of.object.status, (event,))
