"""Arithmetic of budgets over the status of one SpendAccount: reserve, release, settle. Pure.

For each budget, the spend of the current period and all reservations together never exceed the amount. A reservation
counts in full in every period, because the instance may still run in the next one. A settled claim replaces its
reservation by its cost, which is not higher, so settling never exceeds a budget.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, time, timedelta
from typing import Literal, NamedTuple

import msgspec

from skysail.base.names import Annotation
from skysail.base.timestamps import timestamp
from skysail.claims.limits.policy_check import PolicyBudget
from skysail.claims.limits.spend_account import (
    KEPT_DAYS,
    MAX_LAUNCH_RESERVATIONS,
    MAX_OBJECTS,
    MAX_TOTALS,
    MERGED_GPU,
    DayTotal,
    ObjectTotal,
    Reservation,
    SpendAccountStatus,
)

# Shortest lifetime that is worth a launch if the budget limits it.
MIN_LIFETIME_SECONDS = 60.0
# Share of a budget from which on users are warned.
WARNING_SHARE = 0.8
_HOUR = 3600.0
_DIGITS = 6
_UNIT = 1_000_000
# Half of the smallest amount, so that rounding errors of floats do not refuse what exactly fits.
_TOLERANCE = 0.5 / _UNIT

Period = Literal["Day", "Week", "Month"]
_TotalKey = tuple[str, str, str]  # day, provider, GPU type
_ADJECTIVES: dict[Period, str] = {"Day": "daily", "Week": "weekly", "Month": "monthly"}


class ReserveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Money for one launch. `usd_per_hour` is the price of all members, None if it is not known.

    `lifetime`: the longest time that the instance may live, in seconds. `paid`: cost of earlier instances of the same
    claim. `object`: UID of the object whose launches share `max_cost_usd`. `earlier_object`: UID under which an older
    version of Skysail counted these launches, empty if it is the same. `instances`: number of instances of the claim.
    `finish`: the budgets must cover the whole lifetime.
    """

    claim: str
    usd_per_hour: float | None
    lifetime: float
    paid: float = 0.0
    object: str = ""
    earlier_object: str = ""
    max_cost_usd: float | None = None
    instances: int = 1
    finish: bool = False


class Reserved(msgspec.Struct, frozen=True):
    """Money is reserved in `status`. `lifetime`: the time that the money lasts, at most the requested one.

    A lifetime that the money limits is in whole seconds: claims tell times so, and rounding up would exceed the limit.
    `limited_by`: the limit that made the lifetime shorter, empty if none did.
    """

    status: SpendAccountStatus
    reservation: Reservation
    lifetime: float
    limited_by: str = ""


class NotReserved(msgspec.Struct, frozen=True):
    """No money is left for the launch; the message says of which limit, and what to change."""

    message: str


class BudgetUse(msgspec.Struct, frozen=True):
    """Use of one policy's budget in the current period."""

    policy: str
    period: Period
    amount: float
    spent: float
    reserved: float

    @property
    def share(self) -> float:
        """Return the used share, from 0. A budget of nothing is used up."""
        return (self.spent + self.reserved) / self.amount if self.amount > 0 else 1.0


class _Limit(NamedTuple):
    """Money that one limit leaves for a claim, and the name of the limit."""

    left: float
    name: str
    fix: str
    is_strict: bool


def reserve(
    status: SpendAccountStatus, request: ReserveRequest, budgets: Sequence[PolicyBudget], now: datetime
) -> Reserved | NotReserved:
    """Reserve the worst case of a launch, or as much of it as the limits leave. Idempotent by claim.

    A higher request raises the claim's own reservation. A lower one keeps it. A full account takes no new claim: it
    would have to forget a reservation.
    """
    if len(status.reservations) >= MAX_LAUNCH_RESERVATIONS and find(status, request.claim) is None:
        return NotReserved(
            f"The SpendAccount has {len(status.reservations)} reservations, and launches may make"
            f" {MAX_LAUNCH_RESERVATIONS}: wait until some instances of this namespace have ended."
        )
    limits = _limits(status, request, budgets, now)
    price = request.usd_per_hour
    if price is None:
        return _without_price(status, request, limits, now)
    worst = _ceil(request.paid + price * request.lifetime / _HOUR)
    tightest = min(limits, default=None)
    strictest = min((limit for limit in limits if limit.is_strict), default=None)
    if strictest is not None and worst > strictest.left + _TOLERANCE:
        return _refused(strictest, worst)
    if tightest is None or worst <= tightest.left + _TOLERANCE:
        return _reserved(status, request, worst, tightest, now)
    usd = _floor(tightest.left)
    least = min(worst, _ceil(request.paid + price * MIN_LIFETIME_SECONDS / _HOUR))
    if usd < least:
        return _refused(tightest, least)
    return _reserved(status, request, usd, tightest, now)


def lifetime_limited(lifetime: float, limited_by: str) -> str:
    """Return the sentence that tells users which limit makes a lifetime shorter."""
    return f"The instance ends after {lifetime:.0f} seconds, because {limited_by} leaves no more: raise it."


def find(status: SpendAccountStatus, claim: str) -> Reservation | None:
    """Return the reservation of the claim, or None."""
    return next((reservation for reservation in status.reservations if reservation.claim == claim), None)


def instances(status: SpendAccountStatus, *, without: str = "") -> int:
    """Return the number of instances that have a reservation, without those of this claim."""
    return sum(reservation.instances for reservation in status.reservations if reservation.claim != without)


def adopt(status: SpendAccountStatus, reservation: Reservation) -> SpendAccountStatus:
    """Add a reservation without a check, for an instance that exists without one."""
    return _with_reservation(status, reservation)


def release(status: SpendAccountStatus, claims: Iterable[str]) -> SpendAccountStatus:
    """Remove the reservations of claims that cost nothing."""
    gone = set(claims)
    kept = tuple(reservation for reservation in status.reservations if reservation.claim not in gone)
    return msgspec.structs.replace(status, reservations=kept)


def settle(status: SpendAccountStatus, claim: str, costs: Sequence[DayTotal], now: datetime) -> SpendAccountStatus:
    """Replace the claim's reservation by its cost. Idempotent: without a reservation nothing changes."""
    reservation = find(status, claim)
    if reservation is None:
        return status
    return msgspec.structs.replace(
        release(status, [claim]),
        totals=_with_costs(status.totals, costs, _day(now)),
        objects=_with_object(status, reservation.object, costs, _day(now)),
    )


def split_by_day(usd: float, start: datetime, end: datetime) -> list[tuple[str, float]]:
    """Split a cost over the UTC days between two times, in proportion to the time of each day."""
    start, end = start.astimezone(UTC), end.astimezone(UTC)
    seconds = (end - start).total_seconds()
    if seconds <= 0:
        return [(_day(end), usd)]
    parts, left, since = [], usd, start
    while _midnight_after(since) < end:
        until = _midnight_after(since)
        part = min(left, round(usd * (until - since).total_seconds() / seconds, _DIGITS))
        parts.append((_day(since), part))
        left, since = round(left - part, _DIGITS), until
    return [*parts, (_day(since), left)]


def spent(status: SpendAccountStatus, period: Period, now: datetime) -> float:
    """Return the settled spend of the period that contains `now`."""
    first, after = _day(period_start(period, now)), _day(next_period(period, now))
    return _round(sum(total.usd for total in status.totals if first <= total.day < after))


def reserved(status: SpendAccountStatus, *, without: str = "") -> float:
    """Return the sum of all reservations, without the one of this claim."""
    return _round(sum(reservation.usd for reservation in status.reservations if reservation.claim != without))


def use(status: SpendAccountStatus, budgets: Iterable[PolicyBudget], now: datetime) -> list[BudgetUse]:
    """Return the use of each budget in its current period."""
    held = reserved(status)
    return [
        BudgetUse(policy, budget.period, budget.amount, spent(status, budget.period, now), held)
        for policy, budget in budgets
    ]


def period_start(period: Period, now: datetime) -> datetime:
    """Return the begin of the calendar period in UTC that contains `now`. Weeks start on Monday."""
    midnight = datetime.combine(now.astimezone(UTC).date(), time(), UTC)
    match period:
        case "Day":
            return midnight
        case "Week":
            return midnight - timedelta(days=midnight.weekday())
        case "Month":
            return midnight.replace(day=1)


def next_period(period: Period, now: datetime) -> datetime:
    """Return the begin of the period after the one that contains `now`."""
    first = period_start(period, now)
    match period:
        case "Day":
            return first + timedelta(days=1)
        case "Week":
            return first + timedelta(days=7)
        case "Month":
            return (first + timedelta(days=31)).replace(day=1)


def _limits(
    status: SpendAccountStatus, request: ReserveRequest, budgets: Sequence[PolicyBudget], now: datetime
) -> list[_Limit]:
    held = reserved(status, without=request.claim)
    limits = [
        _Limit(
            left=_round(budget.amount - spent(status, budget.period, now) - held),
            name=f"the {_ADJECTIVES[budget.period]} budget of {budget.amount:g} USD in OffloadPolicy {policy}",
            fix=f"wait until {timestamp(next_period(budget.period, now))}, or raise spec.budget.amount",
            is_strict=request.finish,
        )
        for policy, budget in budgets
    ]
    if request.max_cost_usd is not None:
        limits.append(_object_limit(status, request, request.max_cost_usd))
    return limits


def _object_limit(status: SpendAccountStatus, request: ReserveRequest, cap: float) -> _Limit:
    """Return what the object's own cap leaves. Such a cap never waits for the whole lifetime: it ends the instance."""
    uids = {request.object, request.earlier_object or request.object}
    past = sum(total.usd for total in status.objects if total.uid in uids)
    held = sum(
        reservation.usd
        for reservation in status.reservations
        if reservation.object in uids and reservation.claim != request.claim
    )
    return _Limit(
        left=_round(cap - past - held),
        name=f"the cap of {cap:g} USD in annotation {Annotation.MAX_COST}",
        fix=f"other launches hold {held:.2f} USD: wait until they end, or raise the annotation"
        if held
        else "raise the annotation",
        is_strict=False,
    )


def _without_price(
    status: SpendAccountStatus, request: ReserveRequest, limits: Sequence[_Limit], now: datetime
) -> Reserved | NotReserved:
    if limits:
        return NotReserved(
            f"The price of the launch is not known, so {limits[0].name} cannot be kept: wait until the cloud offers"
            " prices."
        )
    return _reserved(status, request, _ceil(request.paid), None, now)


def _reserved(
    status: SpendAccountStatus, request: ReserveRequest, usd: float, tightest: _Limit | None, now: datetime
) -> Reserved:
    old = find(status, request.claim)
    if old is not None and old.usd > usd and (tightest is None or old.usd <= tightest.left + _TOLERANCE):
        usd = old.usd
    reservation = Reservation(
        claim=request.claim,
        usd=usd,
        at=timestamp(now) if old is None else old.at,
        object=request.object if request.max_cost_usd is not None else "",
        instances=request.instances,
    )
    price = request.usd_per_hour or 0.0
    if tightest is None or request.paid + price * request.lifetime / _HOUR <= usd + _TOLERANCE:
        return Reserved(_with_reservation(status, reservation), reservation, request.lifetime)
    lasts = max(0.0, usd - request.paid) / price * _HOUR
    # Leave out errors of floats below a microsecond, which would cost a whole second.
    seconds = float(math.floor(round(lasts, 6)))
    return Reserved(_with_reservation(status, reservation), reservation, seconds, tightest.name)


def _refused(limit: _Limit, needed: float) -> NotReserved:
    left = max(limit.left, 0.0)
    return NotReserved(
        f"{limit.name[0].upper()}{limit.name[1:]} leaves {left:.2f} USD, and this launch needs {needed:.2f}:"
        f" {limit.fix}."
    )


def _with_reservation(status: SpendAccountStatus, reservation: Reservation) -> SpendAccountStatus:
    if find(status, reservation.claim) is None:
        return msgspec.structs.replace(status, reservations=(*status.reservations, reservation))
    changed = tuple(reservation if old.claim == reservation.claim else old for old in status.reservations)
    return msgspec.structs.replace(status, reservations=changed)


def _with_costs(totals: Sequence[DayTotal], costs: Sequence[DayTotal], today: str) -> tuple[DayTotal, ...]:
    sums: defaultdict[_TotalKey, float] = defaultdict(float)
    for total in (*totals, *costs):
        sums[total.day, total.provider, total.gpu] += total.usd
    oldest = _day(datetime.fromisoformat(today) - timedelta(days=KEPT_DAYS - 1))
    kept = {key: usd for key, usd in sums.items() if key[0] >= oldest and usd > 0}
    return tuple(
        DayTotal(day=day, provider=provider, gpu=gpu, usd=_round(usd))
        for (day, provider, gpu), usd in sorted(_merged(kept).items())
    )


def _merged(sums: Mapping[_TotalKey, float]) -> Mapping[_TotalKey, float]:
    """Return at most MAX_TOTALS sums: the GPU types of the oldest days become one, so no money is lost."""
    merged = dict(sums)
    for key in sorted(sums):
        if len(merged) <= MAX_TOTALS:
            break
        day, provider, _ = key
        other = (day, provider, MERGED_GPU)
        usd = merged.pop(key)
        merged[other] = merged.get(other, 0.0) + usd
    return merged


def _with_object(
    status: SpendAccountStatus, uid: str, costs: Sequence[DayTotal], today: str
) -> tuple[ObjectTotal, ...]:
    """Return the totals with the costs of one object. A full list loses the oldest objects that have no reservation."""
    if not uid:
        return status.objects
    past = sum(total.usd for total in status.objects if total.uid == uid)
    new = ObjectTotal(uid=uid, usd=_round(past + sum(cost.usd for cost in costs)), day=today)
    others = [total for total in status.objects if total.uid != uid]
    reserved_for = {reservation.object for reservation in status.reservations}
    others.sort(key=lambda total: (total.uid in reserved_for, total.day, total.uid), reverse=True)
    return tuple(sorted((new, *others[: MAX_OBJECTS - 1]), key=lambda total: total.uid))


def _midnight_after(moment: datetime) -> datetime:
    return datetime.combine(moment.date() + timedelta(days=1), time(), UTC)


def _day(moment: datetime) -> str:
    return moment.date().isoformat()


def _round(usd: float) -> float:
    return round(usd, _DIGITS)


def _ceil(usd: float) -> float:
    return math.ceil(round(usd * _UNIT, 3)) / _UNIT


def _floor(usd: float) -> float:
    return math.floor(round(usd * _UNIT, 3)) / _UNIT
