"""A claim with three candidates: how each story ends, and that a crash after any effect does not change it.

`tests/fault_injection` plays the stories with every other trouble.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from skysail.claims.types import CLOUD_INSTANCE
from skysail.kube.api.resources import EVENT, POD
from tests.simulation import runner
from tests.simulation.cloud_scenarios import SCENARIOS, reference

if TYPE_CHECKING:
    from tests.simulation.coverage_report import Checker

STORIES = ("third candidate", "price above the cap", "no candidate, pod leaves")


def last(name: str, resource: Any) -> dict[str, Any]:
    """Return the last version of the claim or pod before it was deleted."""
    return [change.after for change in runner.journal(SCENARIOS[name]) if change.resource == resource][-1]


def test_candidate_without_capacity_is_followed_by_the_next_in_the_same_claim():
    status = last("third candidate", CLOUD_INSTANCE.resource)["status"]
    assert (status.get("candidate", 0), status["usdPerHour"], status["exit"]["code"]) == (2, 1.1, 0)
    assert [(row["candidate"], row["reason"]) for row in status["refusedCandidates"]] == [
        (0, "NoCapacity"),
        (1, "NoCapacity"),
    ]
    (due,) = reference("third candidate").bill.dues.values()
    assert due.instances == 1


def test_dear_instance_is_terminated_soon_and_followed_by_the_next_candidate():
    assert reference("price above the cap").bill.wrong == []
    claim = last("price above the cap", CLOUD_INSTANCE.resource)
    status = claim["status"]
    assert (status.get("candidate", 0), status["usdPerHour"], status["exit"]["code"]) == (1, 0.8, 0)
    (earlier,) = status["earlierInstances"]
    assert 0 <= earlier["usd"] < claim["spec"]["maxUsdPerHour"] * 60 / 3600
    assert earlier["usd"] < status["usdTotal"]
    (due,) = reference("price above the cap").bill.dues.values()
    assert (due.instances, reference("price above the cap").bill.at_once) == (2, 1)
    assert due.error < 5


def test_pod_of_a_job_without_any_candidate_ends_unpaid_as_disrupted():
    status = last("no candidate, pod leaves", POD)["status"]
    rows = {row["type"]: row.get("reason") for row in status["conditions"]}
    assert (status["phase"], status["reason"], rows["DisruptionTarget"]) == ("Failed", "NoCapacity", "NoCapacity")
    assert reference("no candidate, pod leaves").bill.dues == {}


@pytest.mark.parametrize("name", STORIES)
def test_refused_candidates_are_told_by_events_on_the_pod(name):
    events = [change.after for change in runner.journal(SCENARIOS[name]) if change.resource == EVENT]
    notes = {event["reason"]: event["note"] for event in events if event["regarding"]["kind"] == "Pod"}
    if name == "price above the cap":
        assert "costs 1.18 USD/h, above the cap of 1.15" in notes["PriceAboveCap"]
    if name == "no candidate, pod leaves":
        for words in ("T4 (simulated, 0.59 USD/h)", "L4", "A10", "Nearest miss: modal L40S (48 GiB, simulated)"):
            assert words in notes["NoCapacity"]


@pytest.mark.parametrize("what", ["crash", "twin"])
@pytest.mark.parametrize("name", STORIES)
def test_crash_or_second_operator_after_any_effect_changes_nothing(name: str, what: str, court: Checker):
    faults = runner.faults_for(reference(name), "effect", what)
    assert faults
    assert court.violations(SCENARIOS[name], reference(name), faults) == []


@pytest.mark.parametrize("what", ["lost, done", "lost, not done", "throttled", "no capacity"])
@pytest.mark.parametrize("name", STORIES)
def test_trouble_with_a_call_changes_nothing(name: str, what: str, court: Checker):
    faults = runner.faults_for(reference(name), "call", what)
    assert faults
    assert court.violations(SCENARIOS[name], reference(name), faults) == []
