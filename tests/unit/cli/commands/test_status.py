from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from skysail.cli.commands import status
from skysail.cli.options import NamedOutputFormat
from skysail.local.cluster.control_client import LocalClusterStatus
from skysail.local.cluster.supervisor import Crash, UnitStatus
from skysail.local.reports.cloud_costs import CloudCosts


@pytest.mark.parametrize(
    ("is_ready", "states", "want"),
    [
        (False, ("running", "running"), "starting"),
        (True, ("running", "running"), "ready"),
        (True, ("running", "waiting"), "not running: b"),
        (True, ("stopped", "waiting"), "not running: a, b"),
    ],
)
def test_the_header_says_whether_one_can_work_with_it(is_ready, states, want):
    units = tuple(UnitStatus(name=name, state=state) for name, state in zip("ab", states, strict=True))
    shown = LocalClusterStatus(
        is_ready=is_ready,
        pid=1,
        started=0.0,
        url="",
        with_operator=True,
        with_audit=False,
        mock_clouds=False,
        steps=(),
        units=units,
    )
    assert status._state(shown) == want


def spending(**change):
    usual = {
        "cloud": "modal",
        "node": "modal.com",
        "account": "simulated",
        "outage": "",
        "orphans": "",
        "live": 2,
        "unknown": 0,
        "usd_per_hour": 7.9,
        "usd": 0.123456,
    }
    return CloudCosts(**{**usual, **change})


@pytest.mark.parametrize(
    ("change", "want"),
    [
        ({}, ["modal", "modal.com", "simulated", "yes", "2", "7.90", "0.1235"]),
        (
            {"account": "real", "unknown": 1},
            ["modal", "modal.com", "real", "yes", "2, 1 unknown", "7.90", "0.1235"],
        ),
        ({"account": "stand-in"}, ["modal", "modal.com", "stand-in", "yes", "2", "7.90", "0.1235"]),
        ({"outage": "It is down."}, ["modal", "modal.com", "simulated", "no", "2", "7.90", "0.1235"]),
    ],
)
def test_a_cloud_is_a_row(change, want):
    table = status._clouds([spending(**change)])
    assert [next(iter(column.cells)) for column in table.columns] == want


def test_status_cloud_outage_prints_sentences_and_table_fits_narrow_terminal():
    clouds = [spending(outage="It does not list its instances, because nobody answers there."), spending()]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(status._clouds(clouds))
    rows = [line for line in console.export_text().splitlines() if "modal" in line]
    assert len(rows) == 2
    assert status._outages(clouds) == [
        "modal.com cannot be reached: It does not list its instances, because nobody answers there."
    ]


@pytest.mark.parametrize(
    ("accounts", "want"),
    [
        (("simulated", "simulated"), "All clouds are simulated: nothing is paid"),
        (("simulated", "stand-in"), "All clouds are simulated or stand-ins: nothing is paid"),
        (("stand-in", "stand-in"), "All clouds are stand-ins: nothing is paid"),
        (("stand-in", "real"), "Real clouds bill"),
        (("real", "real"), "real accounts"),
    ],
)
def test_what_a_price_means_is_said(accounts, want):
    assert want in status._bill([spending(account=one) for one in accounts])


def test_what_runs_without_a_claim_is_told_with_its_node():
    clouds = [spending(orphans="1 instance runs there without a claim."), spending()]
    assert status._orphans(clouds) == ["modal.com: 1 instance runs there without a claim."]


@pytest.mark.parametrize(
    ("state", "seconds", "is_shown"), [("running", 60, True), ("running", 3600, False), ("waiting", 3600, True)]
)
def test_an_old_crash_of_a_component_that_has_recovered_is_not_shown(state, seconds, is_shown):
    unit = UnitStatus(name="operator", state=state, crash=Crash(at=1000.0, code=1, log_tail="x"))
    assert status._is_current(unit, 1000.0 + seconds) is is_shown


def test_the_status_is_told_to_programs():
    shown = LocalClusterStatus(
        is_ready=True,
        pid=1,
        started=0.0,
        url="https://x",
        with_operator=True,
        with_audit=False,
        mock_clouds=False,
        steps=(),
        units=(UnitStatus(name="etcd", state="running"), UnitStatus(name="operator", state="waiting")),
    )
    assert status._for_programs(shown, {}, NamedOutputFormat.NAME) == "etcd\noperator"
    facts = json.loads(status._for_programs(shown, {"Pod": 2}, NamedOutputFormat.JSON))
    assert (facts["state"], facts["objects"], facts["url"]) == ("not running: operator", {"Pod": 2}, "https://x")
