"""Plan of a SpendAccount: release what no claim needs, and say how much of the budgets is used. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec

from skysail.base.names import Condition as Conditions
from skysail.base.names import Reason
from skysail.base.timestamps import timestamp
from skysail.claims.limits import budget
from skysail.claims.limits.budget import WARNING_SHARE, BudgetUse
from skysail.claims.limits.policy_check import PolicyBudget
from skysail.claims.limits.spend_account import SPEND_ACCOUNT, SpendAccount, SpendAccountStatus
from skysail.core import conditions
from skysail.core.actions import Event, PatchStatus, Plan
from skysail.kube.api.fields import Condition

# Time after which a reservation counts for conditions and events.
_SETTLING = timedelta(seconds=10)


class AccountSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Account, the budgets of its namespace, and the claims that do not exist any more.

    `budgets`: None if the policies are not known. `absent_claims`: only those of which the API server says so.
    """

    object: SpendAccount
    now: datetime
    budgets: tuple[PolicyBudget, ...] | None
    absent_claims: frozenset[str] = frozenset()


def plan(snapshot: AccountSnapshot) -> Plan:
    account = snapshot.object
    old = account.status
    released = budget.release(old, snapshot.absent_claims) if snapshot.absent_claims else old
    if snapshot.budgets is None:
        return Plan(actions=_write(account, released))
    delay = _seconds_until_settled(released, snapshot.now)
    if delay is not None:
        return Plan(actions=_write(account, released), requeue_after=delay)
    used = budget.use(released, snapshot.budgets, snapshot.now)
    new = _with_condition(snapshot, released, _condition(snapshot, used))
    return Plan(
        actions=_write(account, new),
        events=_events(old, new),
        requeue_after=_seconds_to_next_period(snapshot.budgets, snapshot.now),
    )


def rejected(snapshot: AccountSnapshot, event: Event) -> Plan:
    """Report a rejected write by an event: what cannot be written has no condition."""
    return Plan(status=snapshot.object.status, events=(event,))


def _condition(snapshot: AccountSnapshot, used: list[BudgetUse]) -> Condition | None:
    """Return the condition of the budget that is used most, or None without a budget.

    The message has no amounts that change with each launch, because each change is a write.
    """
    if not used:
        return None
    most = max(used, key=lambda row: (row.share, row.policy))
    budget_text = f"the budget of {most.amount:g} USD per {most.period.lower()} in OffloadPolicy {most.policy}"
    end = timestamp(budget.next_period(most.period, snapshot.now))
    if most.share >= 1:
        return _made(
            snapshot,
            "False",
            Reason.BUDGET_EXHAUSTED,
            f"Spend and reservations have used up {budget_text}: raise it, or wait until {end}.",
        )
    if most.share >= WARNING_SHARE:
        message = f"Spend and reservations have reached {WARNING_SHARE:.0%} of {budget_text}, which ends at {end}."
        return _made(snapshot, "True", Reason.BUDGET_LOW, message)
    return _made(snapshot, "True", Reason.WITHIN_BUDGET, "Spend and reservations are within all budgets.")


def _made(snapshot: AccountSnapshot, status: Any, reason: Reason, message: str) -> Condition:
    return Condition(
        type=Conditions.BUDGET_AVAILABLE,
        status=status,
        last_transition_time=timestamp(snapshot.now),
        reason=reason,
        message=message,
        observed_generation=snapshot.object.metadata.generation,
    )


def _with_condition(
    snapshot: AccountSnapshot, status: SpendAccountStatus, condition: Condition | None
) -> SpendAccountStatus:
    rest = tuple(row for row in status.conditions if row.type != Conditions.BUDGET_AVAILABLE)
    rows = rest if condition is None else conditions.replace_condition(status.conditions, condition)
    if rows == status.conditions:
        return status
    return msgspec.structs.replace(status, conditions=rows, observed_generation=snapshot.object.metadata.generation)


def _events(old: SpendAccountStatus, new: SpendAccountStatus) -> tuple[Event, ...]:
    """Record an event when the reason gets worse, once per change of the written condition."""
    previous = conditions.find_condition(old.conditions, Conditions.BUDGET_AVAILABLE)
    current = conditions.find_condition(new.conditions, Conditions.BUDGET_AVAILABLE)
    if current is None or current.reason == Reason.WITHIN_BUDGET:
        return ()
    if previous is not None and previous.reason == current.reason:
        return ()
    return (Event(current.reason, current.message, warning=True),)


def _seconds_until_settled(status: SpendAccountStatus, now: datetime) -> float | None:
    """Return the seconds until the newest reservation is old enough to count, or None if it is.

    A launch that the cloud refuses at once is no reason for a warning.
    """
    newest = max((datetime.fromisoformat(reservation.at) for reservation in status.reservations), default=None)
    if newest is None or not newest <= now < newest + _SETTLING:
        return None
    return (newest + _SETTLING - now).total_seconds()


def _seconds_to_next_period(budgets: tuple[PolicyBudget, ...], now: datetime) -> float | None:
    ends = [budget.next_period(row.budget.period, now) for row in budgets]
    return max(1.0, (min(ends) - now).total_seconds()) if ends else None


def _write(account: SpendAccount, status: SpendAccountStatus) -> tuple[PatchStatus, ...]:
    """Return the write of the changed fields, which fails if the account was changed since it was read."""
    old = account.status
    fields: dict[str, Any] = {}
    if status.reservations != old.reservations:
        fields["reservations"] = msgspec.to_builtins(status.reservations)
    if status.conditions != old.conditions:
        fields["conditions"] = msgspec.to_builtins(status.conditions)
        fields["observedGeneration"] = status.observed_generation
    return (PatchStatus(SPEND_ACCOUNT.resource, account, fields),) if fields else ()
