"""Running cost is computed from what claims say, and written by nobody."""

from __future__ import annotations

import pytest

from skysail.kube.api.objects import Meta
from skysail.local.reports import cloud_costs
from skysail.local.reports.cloud_costs import CloudNode, NodeInfo, NodeStatus
from tests.unit.claims.samples import NOW, ago, claim, spec


def node(runtime: str = "cloud://simulated", *conditions: dict) -> CloudNode:
    told = conditions or ({"type": "CloudReachable", "status": "True", "message": "It lists."},)
    return CloudNode(Meta(name="virtual"), NodeStatus(NodeInfo(runtime), told))


CLAIMS = [
    claim("Running", start_time=ago(1800), usd_per_hour=2.0),
    claim("Starting", start_time=ago(360), usd_per_hour=1.0),
    claim("Terminated", instance_id="i-0", usd_per_hour=9.0, usd_total=0.5, start_time=ago(9999)),
    claim("Unknown"),
    claim("Claimed"),
    claim("Running", of=spec(provider="elsewhere"), usd_per_hour=100.0),
]


def test_what_lives_is_billed_until_now_and_what_ended_as_it_was_written():
    found = cloud_costs.of(node(), CLAIMS, NOW.timestamp())
    assert (found.live, found.unknown, found.usd_per_hour) == (2, 1, 3.0)
    assert found.usd == pytest.approx(1.0 + 0.1 + 0.5)


@pytest.mark.parametrize(
    ("runtime", "want"),
    [
        ("cloud://simulated", ("simulated", True)),
        ("cloud://stand-in", ("stand-in", True)),
        ("cloud://account", ("real", False)),
        ("", ("unknown", False)),
    ],
)
def test_account_is_what_the_node_says(runtime, want):
    costs = cloud_costs.of(node(runtime), [], 0.0)
    assert (costs.account, costs.is_free) == want


@pytest.mark.parametrize(
    ("conditions", "want"),
    [
        ([{"type": "CloudReachable", "status": "True", "message": "It lists."}], ""),
        ([{"type": "CloudReachable", "status": "False", "message": "It is down."}], "It is down."),
        ([{"type": "Ready", "status": "True", "message": ""}], "No status reported yet."),
    ],
)
def test_an_outage_is_told_in_the_words_of_the_node(conditions, want):
    assert cloud_costs.of(node("cloud://account", *conditions), [], 0.0).outage == want


@pytest.mark.parametrize(("status", "want"), [("True", ""), ("Unknown", ""), ("False", "1 instance.")])
def test_what_runs_without_a_claim_is_told_in_the_words_of_the_node(status, want):
    claimed = {"type": "NoOrphanedInstances", "status": status, "message": "1 instance."}
    assert cloud_costs.of(node("cloud://account", claimed), [], 0.0).orphans == want
