from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from skysail.claims.limits.spend_account import (
    DayTotal,
    Reservation,
    SpendAccount,
    SpendAccountSpec,
    SpendAccountStatus,
)
from skysail.claims.types import Candidate, EarlierInstance, OwnerRef
from skysail.cli.clouds import cost_report
from skysail.cli.clouds.cost_report import CostQuery, Grouping
from skysail.kube.api.objects import Meta
from tests.unit.claims import samples
from tests.unit.claims.samples import NOW, ago

H100 = Candidate(gpu_type="H100", usd_per_hour=3.6)
TODAY, YESTERDAY, LONG_AGO = "2026-11-15", "2026-11-14", "2026-01-01"


def claim(state: str, name: str = "a", namespace: str = "n", **status: Any):
    owner = OwnerRef(kind="Pod", namespace=namespace, name=name, uid=f"uid-{name}", container="main")
    candidates = (H100,) if status.pop("gpu", True) else (Candidate(usd_per_hour=0.1),)
    return samples.claim(state, of=samples.spec(owner=owner, candidates=candidates), **status)


def account(*totals: tuple[str, float], namespace: str = "n", reserved: tuple[str, ...] = ()) -> SpendAccount:
    status = SpendAccountStatus(
        totals=tuple(DayTotal(day=day, provider="cloud", gpu="H100", usd=usd) for day, usd in totals),
        reservations=tuple(Reservation(claim=name, usd=9.0, at=ago(60)) for name in reserved),
    )
    return SpendAccount(Meta(name=namespace), SpendAccountSpec(namespace), status)


def report(claims=(), accounts=(), by: str = "namespace", **query: Any):
    return cost_report.report(claims, accounts, CostQuery(by=Grouping(by), **query), NOW)


def rows(shown) -> dict[str, tuple[int, float, float, float]]:
    return {row.key: (row.instances, row.usd_per_hour, row.running_usd, row.past_usd) for row in shown.rows}


def test_report_running_claim_costs_rate_times_time():
    running = claim("Running", start_time=ago(600))
    assert rows(report([running])) == {"n": (1, 3.6, 0.6, 0.0)}


def test_report_earlier_instances_of_a_running_claim_are_included():
    running = claim("Running", start_time=ago(600), earlier_instances=(EarlierInstance(id="i-0", usd=0.25),))
    assert rows(report([running]))["n"][2] == 0.85


def test_report_claim_without_instance_costs_nothing():
    assert rows(report([claim("Claimed")])) == {}
    assert cost_report.render(report([claim("Claimed")])) == ["No costs since 2026-10-17."]


@pytest.mark.parametrize(
    ("reserved_usd", "reserved", "want"),
    [
        (None, (), 0.5 + 2.0),  # a claim of before accounts were kept
        (9.0, (f"uid-a-{0}",), 0.5 + 2.0),  # not settled yet
        (9.0, (), 2.0),  # settled, so its cost is in the total
    ],
)
def test_report_terminated_claim_is_counted_once(reserved_usd, reserved, want):
    ended = claim("Terminated", reserved_usd=reserved_usd, start_time=ago(605))
    shown = report([ended], [account((TODAY, 2.0), reserved=reserved)])
    assert rows(shown) == {"n": (0, 0.0, 0.0, want)}


def test_report_by_owner_shows_settled_claims_by_name_and_the_rest_as_a_sum():
    claims = [claim("Terminated", reserved_usd=9.0, start_time=ago(605)), claim("Running", "b", start_time=ago(600))]
    shown = report(claims, [account((TODAY, 2.0), (YESTERDAY, 1.0))], by="owner")
    assert rows(shown) == {
        "n/pod/a": (0, 0.0, 0.0, 0.5),
        "n/pod/b": (1, 3.6, 0.6, 0.0),
        "n: deleted objects": (0, 0.0, 0.0, 2.5),
    }
    assert shown.total.total_usd == 3.6


def test_report_by_gpu_groups_machines_without_gpu():
    claims = [claim("Running", start_time=ago(600)), claim("Running", "b", gpu=False, start_time=ago(600))]
    shown = report(claims, [account((TODAY, 2.0))], by="gpu")
    assert rows(shown) == {"H100": (1, 3.6, 0.6, 2.0), cost_report.NO_GPU: (1, 3.6, 0.6, 0.0)}


def test_report_by_day_splits_a_running_claim_at_midnight_and_sorts_by_day():
    running = claim("Running", start_time=ago(13 * 3600))
    shown = report([running], [account((TODAY, 2.0), (YESTERDAY, 1.0))], by="day")
    assert rows(shown) == {YESTERDAY: (0, 0.0, 3.6, 1.0), TODAY: (1, 3.6, 43.2, 2.0)}
    assert [row.key for row in shown.rows] == [YESTERDAY, TODAY]


def test_report_days_leaves_out_older_spend_but_never_a_running_instance():
    running = claim("Running", start_time=ago(timedelta(days=3).total_seconds()))
    shown = report([running], [account((TODAY, 2.0), (LONG_AGO, 100.0))], days=1)
    assert rows(shown) == {"n": (1, 3.6, 259.2, 2.0)}


def test_report_namespace_leaves_out_others():
    claims = [claim("Running", start_time=ago(600)), claim("Running", "b", "other", start_time=ago(600))]
    shown = report(claims, [account((TODAY, 2.0)), account((TODAY, 5.0), namespace="other")], namespace="other")
    assert rows(shown) == {"other": (1, 3.6, 0.6, 5.0)}


def test_report_unknown_facts_are_noted():
    shown = cost_report.report([claim("Unknown")], None, CostQuery(by=Grouping.NAMESPACE), NOW)
    assert shown.notes == (
        "1 launch has no known outcome yet: its instance may run and cost money.",
        "Past spend of deleted objects is not included: you may not list SpendAccounts.",
    )
    shown = cost_report.report([claim("Unknown"), claim("Launching", "b")], (), CostQuery(by=Grouping.NAMESPACE), NOW)
    assert shown.notes == ("2 launches have no known outcome yet: their instances may run and cost money.",)


def test_render_without_width_has_no_bars_and_cuts_nothing():
    long = "n" * 300
    lines = cost_report.render(report([], [account((TODAY, 2.0), namespace=long), account((TODAY, 1.0))]))
    assert lines[0].split() == ["NAMESPACE", "INSTANCES", "USD/H", "RUNNING", "USD", "PAST", "USD", "TOTAL", "USD"]
    assert lines[1].split() == [long, "0", "0.00", "0.0000", "2.0000", "2.0000"]
    assert lines[-1].split() == ["TOTAL", "0", "0.00", "0.0000", "3.0000", "3.0000"]
    assert not any(block in line for line in lines for block in "█▏")


def test_render_width_draws_bars_in_proportion():
    lines = cost_report.render(report([], [account((TODAY, 2.0)), account((TODAY, 1.0), namespace="m")]), width=100)
    drawn = [line.count("█") for line in lines]
    assert drawn[1] // 2 == drawn[2] > 0
    assert drawn[0] == drawn[3] == 0
    assert all(len(line) <= 100 for line in lines)


def test_render_narrow_terminal_has_no_bars():
    lines = cost_report.render(report([], [account((TODAY, 2.0))]), width=60)
    assert not any("█" in line for line in lines)


@pytest.mark.parametrize(("value", "want"), [(0, ""), (0.0001, "▏"), (5, "██▌"), (10, "█████")])
def test_bar_is_proportional_and_shows_any_positive_value(value, want):
    assert cost_report.bar(value, 10, 5) == want
