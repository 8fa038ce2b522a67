"""Arithmetic of budgets: tables for single steps, and a state machine for all orders of steps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from skysail.claims.limits import budget
from skysail.claims.limits.budget import NotReserved, Reserved, ReserveRequest
from skysail.claims.limits.offload_policy import Budget
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

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)  # a Sunday
AT = "2026-11-15T12:00:00Z"
HOUR = 3600.0


def ask(claim: str = "a", price: float | None = 2.0, lifetime: float = HOUR, **fields) -> ReserveRequest:
    return ReserveRequest(claim=claim, usd_per_hour=price, lifetime=lifetime, **fields)


def limits(amount: float, period: str = "Month", name: str = "p") -> list[PolicyBudget]:
    return [PolicyBudget(name, Budget(amount, period))]


def held(*rows: tuple[str, float], **fields) -> SpendAccountStatus:
    return SpendAccountStatus(
        reservations=tuple(Reservation(claim=claim, usd=usd, at=AT) for claim, usd in rows), **fields
    )


def day(name: str, usd: float) -> DayTotal:
    return DayTotal(day=name, provider="modal", gpu="T4", usd=usd)


def test_reserve_within_budget_reserves_the_worst_case():
    made = budget.reserve(SpendAccountStatus(), ask(), limits(2.0), NOW)
    assert made == Reserved(held(("a", 2.0)), Reservation(claim="a", usd=2.0, at=AT), HOUR)


def test_reserve_in_a_full_account_forgets_no_reservation():
    full = held(*((f"c{number}", 1.0) for number in range(MAX_LAUNCH_RESERVATIONS)))
    made = budget.reserve(full, ask(), [], NOW)
    assert isinstance(made, NotReserved)
    assert f"launches may make {MAX_LAUNCH_RESERVATIONS}: wait until" in made.message
    assert budget.reserve(full, ask("c7"), [], NOW).reservation.usd == 2.0  # its own reservation is raised
    left = budget.settle(full, "c0", [], NOW)
    assert isinstance(budget.reserve(left, ask(), [], NOW), Reserved)
    adopted = budget.adopt(full, Reservation(claim="found", usd=3.0, at=AT))
    assert budget.find(adopted, "found") is not None


def test_settle_with_full_totals_merges_the_oldest_days_and_loses_no_money():
    days = [(NOW - timedelta(days=number)).date().isoformat() for number in range(KEPT_DAYS)]
    gpus = [f"GPU-{number:02}" for number in range(MAX_TOTALS // KEPT_DAYS)]
    totals = tuple(DayTotal(day=day, provider="modal", gpu=gpu, usd=1.0) for day in sorted(days) for gpu in gpus)
    assert len(totals) == MAX_TOTALS
    settled = budget.settle(held(("a", 9.0), totals=totals), "a", [day(days[0], 5.0)], NOW)
    assert len(settled.totals) <= MAX_TOTALS
    assert sum(total.usd for total in settled.totals) == MAX_TOTALS + 5.0
    assert {total.day for total in settled.totals if total.gpu == MERGED_GPU} == {days[-1]}
    assert budget.spent(settled, "Day", NOW) == len(gpus) + 5.0
    msgspec.convert(msgspec.to_builtins(settled), SpendAccountStatus)  # within the bounds of the schema


def test_reserve_without_limits_reserves_the_worst_case():
    made = budget.reserve(SpendAccountStatus(), ask(), [], NOW)
    assert made.reservation.usd == 2.0


def test_reserve_above_budget_stop_shortens_the_lifetime():
    made = budget.reserve(held(("b", 1.0)), ask(), limits(1.5), NOW)
    assert (made.reservation.usd, made.lifetime) == (0.5, HOUR / 4)
    assert made.limited_by == "the monthly budget of 1.5 USD in OffloadPolicy p"


def test_reserve_above_cap_rounds_the_lifetime_down():
    made = budget.reserve(SpendAccountStatus(), ask(price=0.9516, object="job", max_cost_usd=0.02), [], NOW)
    assert made.lifetime == 75.0  # 75.66 seconds cost 0.02 USD, and 76 more
    assert made.limited_by == "the cap of 0.02 USD in annotation skysail.dev/max-cost-usd"


def test_reserve_above_budget_finish_is_refused():
    made = budget.reserve(held(("b", 1.0)), ask(finish=True), limits(1.5, "Day"), NOW)
    assert made == NotReserved(
        "The daily budget of 1.5 USD in OffloadPolicy p leaves 0.50 USD, and this launch needs 2.00: wait until"
        " 2026-11-16T00:00:00Z, or raise spec.budget.amount."
    )


@pytest.mark.parametrize(("left", "is_reserved"), [(2.0 / 60, False), (2.1 / 60, True), (0.0, False), (-5.0, False)])
def test_reserve_less_than_a_minute_is_refused(left, is_reserved):
    made = budget.reserve(held(("b", 10.0)), ask(), limits(10.0 + left), NOW)
    assert isinstance(made, Reserved) is is_reserved


def test_reserve_lifetime_below_a_minute_needs_only_its_own_worst_case():
    made = budget.reserve(SpendAccountStatus(), ask(lifetime=36.0), limits(0.02), NOW)
    assert (made.reservation.usd, made.lifetime) == (0.02, 36.0)


@pytest.mark.parametrize(
    ("period", "is_reserved"),
    [("Day", True), ("Week", False), ("Month", False)],
)
def test_reserve_counts_the_days_of_the_period(period, is_reserved):
    status = SpendAccountStatus(totals=(day("2026-11-09", 3.0), day("2026-11-01", 0.5), day("2026-10-31", 100.0)))
    made = budget.reserve(status, ask(finish=True), limits(4.0, period), NOW)
    assert isinstance(made, Reserved) is is_reserved


@pytest.mark.parametrize(
    ("period", "first", "after"),
    [
        ("Day", "2026-11-15", "2026-11-16"),
        ("Week", "2026-11-09", "2026-11-16"),
        ("Month", "2026-11-01", "2026-12-01"),
    ],
)
def test_period_boundaries_are_calendar_periods_in_utc(period, first, after):
    east = NOW.astimezone(tz=None)
    for moment in (NOW, east, NOW.replace(hour=0), NOW.replace(hour=23, minute=59, second=59)):
        assert budget.period_start(period, moment) == datetime.fromisoformat(f"{first}T00:00:00Z")
        assert budget.next_period(period, moment) == datetime.fromisoformat(f"{after}T00:00:00Z")


def test_next_period_of_december_is_january():
    assert budget.next_period("Month", datetime(2026, 12, 31, 23, tzinfo=UTC)) == datetime(2027, 1, 1, tzinfo=UTC)


def test_reserve_twice_changes_nothing():
    first = budget.reserve(SpendAccountStatus(), ask(), limits(9.0), NOW)
    again = budget.reserve(first.status, ask(), limits(9.0), NOW + timedelta(hours=1))
    assert again == first


def test_reserve_dearer_candidate_raises_the_reservation():
    first = budget.reserve(SpendAccountStatus(), ask(), limits(9.0), NOW)
    raised = budget.reserve(first.status, ask(price=3.0), limits(9.0), NOW + timedelta(hours=1))
    assert raised.status == held(("a", 3.0))


def test_reserve_cheaper_candidate_keeps_the_reservation():
    made = budget.reserve(held(("a", 3.0)), ask(price=1.0), limits(9.0), NOW)
    assert (made.status, made.lifetime) == (held(("a", 3.0)), HOUR)


def test_reserve_after_the_budget_was_lowered_lowers_the_reservation():
    made = budget.reserve(held(("a", 3.0)), ask(), limits(1.0), NOW)
    assert (made.status, made.lifetime) == (held(("a", 1.0)), HOUR / 2)


def test_reserve_unknown_price_is_refused_only_with_a_limit():
    assert budget.reserve(SpendAccountStatus(), ask(price=None), [], NOW).status == held(("a", 0.0))
    refused = budget.reserve(SpendAccountStatus(), ask(price=None), limits(9.0), NOW)
    assert "price of the launch is not known" in refused.message


def test_reserve_after_an_earlier_instance_of_the_claim_covers_both():
    made = budget.reserve(SpendAccountStatus(), ask(paid=0.5), limits(2.0), NOW)
    assert (made.reservation.usd, made.lifetime) == (2.0, HOUR * 0.75)
    assert isinstance(budget.reserve(SpendAccountStatus(), ask(paid=2.0), limits(2.0), NOW), NotReserved)
    assert budget.reserve(SpendAccountStatus(), ask(price=None, paid=0.5), [], NOW).reservation.usd == 0.5


@pytest.mark.parametrize("paid", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("lifetime", [900.0, 36.5, HOUR])
def test_reserve_within_the_limits_shortens_no_lifetime_by_errors_of_floats(lifetime, paid):
    for cents in range(1, 400):
        made = budget.reserve(
            SpendAccountStatus(), ask(price=cents / 100, lifetime=lifetime, paid=paid), limits(9.0), NOW
        )
        assert (made.lifetime, made.limited_by) == (lifetime, ""), cents


def test_reserve_free_machine_reserves_nothing_for_its_whole_lifetime():
    made = budget.reserve(SpendAccountStatus(), ask(price=0.0), limits(0.0), NOW)
    assert (made.reservation.usd, made.lifetime) == (0.0, HOUR)


def test_reserve_all_budgets_must_hold():
    both = [*limits(9.0, "Month", "wide"), *limits(1.0, "Day", "tight")]
    assert "OffloadPolicy tight" in budget.reserve(SpendAccountStatus(), ask(), both, NOW).limited_by


def test_reserve_cap_of_object_counts_past_and_running_launches():
    mine = Reservation(claim="b", usd=1.0, at=AT, object="job")
    other = Reservation(claim="c", usd=50.0, at=AT, object="else")
    past = (ObjectTotal(uid="job", usd=2.5, day="2026-11-14"), ObjectTotal(uid="else", usd=70.0, day="2026-11-14"))
    status = SpendAccountStatus(reservations=(mine, other), objects=past)
    made = budget.reserve(status, ask(object="job", max_cost_usd=4.0, finish=True), [], NOW)
    assert (made.reservation.usd, made.reservation.object) == (0.5, "job")
    refused = budget.reserve(status, ask(object="job", max_cost_usd=3.5), [], NOW)
    assert "The cap of 3.5 USD in annotation skysail.dev/max-cost-usd leaves 0.00 USD" in refused.message
    assert "other launches hold 1.00 USD: wait until they end, or raise the annotation." in refused.message
    ended = budget.reserve(SpendAccountStatus(objects=past), ask(object="job", max_cost_usd=2.5), [], NOW)
    assert ended.message.endswith("needs 0.03: raise the annotation.")


def test_settle_replaces_the_reservation_by_the_cost_once():
    status = held(("a", 2.0), ("b", 1.0), totals=(day("2026-11-15", 1.0),))
    settled = budget.settle(status, "a", [day("2026-11-15", 0.5), day("2026-11-14", 0.25)], NOW)
    assert settled == held(("b", 1.0), totals=(day("2026-11-14", 0.25), day("2026-11-15", 1.5)))
    assert budget.settle(settled, "a", [day("2026-11-15", 0.5)], NOW) == settled


def test_settle_without_cost_releases():
    assert budget.settle(held(("a", 2.0)), "a", [], NOW) == SpendAccountStatus()


def test_settle_forgets_days_after_400():
    old, kept = NOW - timedelta(days=400), NOW - timedelta(days=399)
    status = held(("a", 2.0), totals=(day(old.date().isoformat(), 1.0), day(kept.date().isoformat(), 1.0)))
    assert [row.day for row in budget.settle(status, "a", [], NOW).totals] == [kept.date().isoformat()]


def test_settle_adds_to_the_capped_object():
    status = SpendAccountStatus(reservations=(Reservation(claim="a", usd=2.0, at=AT, object="job"),))
    for _ in range(2):
        status = budget.settle(status, "a", [day("2026-11-15", 0.5)], NOW)
    assert status.objects == (ObjectTotal(uid="job", usd=0.5, day="2026-11-15"),)


def test_settle_many_capped_objects_keeps_the_newest():
    known = tuple(ObjectTotal(uid=f"o{n:05}", usd=1.0, day="2026-01-01") for n in range(MAX_OBJECTS))
    status = SpendAccountStatus(reservations=(Reservation(claim="a", usd=2.0, at=AT, object="job"),), objects=known)
    objects = budget.settle(status, "a", [day("2026-11-15", 0.5)], NOW).objects
    assert len(objects) == MAX_OBJECTS
    assert "job" in {row.uid for row in objects}


def test_settle_with_many_capped_objects_of_one_day_keeps_those_that_may_launch_again():
    known = tuple(ObjectTotal(uid=f"f{n:05}", usd=1.0, day="2026-11-15") for n in range(MAX_OBJECTS - 1))
    running = ObjectTotal(uid="0running", usd=4.0, day="2026-11-14")
    reservations = tuple(Reservation(claim=name, usd=5.0, at=AT, object=f"0{name}") for name in ("job", "running"))
    status = SpendAccountStatus(reservations=reservations, objects=(running, *known))
    objects = budget.settle(status, "job", [day("2026-11-15", 5.0)], NOW).objects
    assert objects[:2] == (ObjectTotal(uid="0job", usd=5.0, day="2026-11-15"), running)
    assert len(objects) == MAX_OBJECTS


def test_release_removes_only_the_named_claims():
    assert budget.release(held(("a", 2.0), ("b", 1.0), ("c", 1.0)), ["a", "c", "x"]) == held(("b", 1.0))


def test_adopt_adds_without_a_check():
    assert budget.adopt(held(("b", 1.0)), Reservation(claim="a", usd=99.0, at=AT)) == held(("b", 1.0), ("a", 99.0))


def test_use_of_a_budget_is_spend_and_reservations():
    status = held(("a", 1.0), ("b", 2.0), totals=(day("2026-11-15", 3.0), day("2026-11-02", 1.0)))
    (used,) = budget.use(status, limits(8.0, "Day"), NOW)
    assert (used.spent, used.reserved, used.share) == (3.0, 3.0, 0.75)
    assert budget.use(status, limits(0.0), NOW)[0].share == 1.0


@pytest.mark.parametrize(
    ("start", "end", "parts"),
    [
        ("2026-11-15T10:00:00Z", "2026-11-15T11:00:00Z", [("2026-11-15", 4.0)]),
        ("2026-11-15T23:00:00Z", "2026-11-16T03:00:00Z", [("2026-11-15", 1.0), ("2026-11-16", 3.0)]),
        ("2026-11-14T12:00:00Z", "2026-11-15T12:00:00Z", [("2026-11-14", 2.0), ("2026-11-15", 2.0)]),
        ("2026-11-15T23:00:00Z", "2026-11-16T00:00:00Z", [("2026-11-15", 4.0)]),
        ("2026-11-15T10:00:00Z", "2026-11-15T10:00:00Z", [("2026-11-15", 4.0)]),
        ("2026-11-15T10:00:00Z", "2026-11-15T09:00:00Z", [("2026-11-15", 4.0)]),
        ("2026-11-16T01:00:00+02:00", "2026-11-16T03:00:00+02:00", [("2026-11-15", 2.0), ("2026-11-16", 2.0)]),
    ],
)  # fmt: skip
def test_split_by_day_is_proportional_to_the_time(start, end, parts):
    assert budget.split_by_day(4.0, datetime.fromisoformat(start), datetime.fromisoformat(end)) == parts


@given(usd=st.floats(0, 1000), minutes=st.integers(0, 100_000), start=st.integers(0, 400_000))
def test_split_by_day_loses_nothing(usd, minutes, start):
    usd = round(usd, 6)
    begin = NOW + timedelta(minutes=start)
    parts = budget.split_by_day(usd, begin, begin + timedelta(minutes=minutes))
    assert sum(part for _, part in parts) == pytest.approx(usd, abs=1e-5)
    assert all(part >= 0 for _, part in parts)
    assert [name for name, _ in parts] == sorted({name for name, _ in parts})


PRICES = st.sampled_from([0.06, 0.44, 2.1, 3.95, 31.6])
LIFETIMES = st.sampled_from([30.0, 60.0, 600.0, HOUR, 24 * HOUR])
CLAIMS = [f"claim-{number}" for number in range(6)]


class Namespace(RuleBasedStateMachine):
    """Launches, ends, clock and lost replies in any order. Instances live at most as long as their money lasts."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.status = SpendAccountStatus()
        self.budgets = [PolicyBudget("day", Budget(20.0, "Day")), PolicyBudget("month", Budget(90.0, "Month"))]
        self.cap = 30.0
        # Price, lifetime and start of each launched claim.
        self.running: dict[str, tuple[float, float, datetime]] = {}
        # True cost by day, whatever the account says.
        self.bills: list[tuple[str, float]] = []
        self.cost = 0.0
        self.launches = 0

    @rule(claim=st.sampled_from(CLAIMS), price=PRICES, lifetime=LIFETIMES, finish=st.booleans(), is_lost=st.booleans())
    def launch(self, claim: str, price: float, lifetime: float, *, finish: bool, is_lost: bool) -> None:
        if claim in self.running:
            return
        request = ask(claim, price, lifetime, finish=finish, object="job", max_cost_usd=self.cap)
        made = budget.reserve(self.status, request, self.budgets, self.now)
        if isinstance(made, NotReserved):
            return
        self.status = made.status
        assert budget.reserve(made.status, request, self.budgets, self.now).status == made.status
        assert made.lifetime * price / HOUR <= made.reservation.usd + 1e-6
        assert made.lifetime >= min(budget.MIN_LIFETIME_SECONDS, lifetime) - 1e-3
        assert made.lifetime == lifetime or not finish or "max-cost-usd" in made.limited_by
        if not is_lost:  # otherwise the process crashed between the reservation and the launch
            self.running[claim] = price, made.lifetime, self.now

    @precondition(lambda self: self.running)
    @rule(data=st.data(), share=st.sampled_from([0.0, 0.1, 1.0]))
    def end(self, data: st.DataObject, share: float) -> None:
        claim = data.draw(st.sampled_from(sorted(self.running)))
        self._end(claim, share)

    @rule(hours=st.sampled_from([0.02, 1, 5, 24, 24 * 20, 24 * 31]))
    def pass_time(self, hours: float) -> None:
        self.now += timedelta(hours=hours)
        for claim, (_, lifetime, start) in list(self.running.items()):
            if start + timedelta(seconds=lifetime) <= self.now:
                self._end(claim, 1.0)

    @precondition(lambda self: set(CLAIMS) - set(self.running))
    @rule()
    def release_claims_that_were_never_launched(self) -> None:
        self.status = budget.release(self.status, set(CLAIMS) - set(self.running))

    def _end(self, claim: str, share: float) -> None:
        price, lifetime, start = self.running.pop(claim)
        seconds = min(lifetime, (self.now - start).total_seconds()) * (share if share < 1 else 1.0)
        end, usd = start + timedelta(seconds=seconds), round(price * seconds / HOUR, 6)
        parts = budget.split_by_day(usd, start, end)
        costs = [DayTotal(day=name, provider="modal", usd=part) for name, part in parts]
        self.status = budget.settle(self.status, claim, costs, self.now)
        assert budget.settle(self.status, claim, costs, self.now) == self.status
        self.bills += parts
        self.cost += usd
        self.launches += 1

    @invariant()
    def budgets_hold_in_every_period(self) -> None:
        for days, amount in ((10, 20.0), (7, 90.0)):  # the length of `2026-11-15` and of `2026-11`
            sums: dict[str, float] = {}
            for name, usd in self.bills:
                sums[name[:days]] = sums.get(name[:days], 0.0) + usd
            assert all(usd <= amount + 1e-4 for usd in sums.values()), sums
        assert self.cost <= self.cap + 1e-4

    @invariant()
    def spend_and_reservations_are_within_the_budgets(self) -> None:
        for used in budget.use(self.status, self.budgets, self.now):
            assert used.spent + used.reserved <= used.amount + 1e-4

    @invariant()
    def status_is_valid(self) -> None:
        assert msgspec.convert(msgspec.to_builtins(self.status), SpendAccountStatus) == self.status
        assert set(self.running) <= {row.claim for row in self.status.reservations}


TestNamespace = Namespace.TestCase
TestNamespace.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
