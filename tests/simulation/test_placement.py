"""Pods without a node: bound once, never doubled or lost, whatever goes wrong."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from skysail.base.names import Condition
from skysail.kube.api.resources import POD
from tests.simulation import runner
from tests.simulation.faults import WRITE_TROUBLES
from tests.simulation.offload import NODE
from tests.simulation.placement import SCENARIOS, reference

if TYPE_CHECKING:
    from tests.simulation.coverage_report import Checker


def pods(name: str) -> list[dict[str, Any]]:
    """Return all versions of the pod in an undisturbed run."""
    return [change.after for change in runner.journal(SCENARIOS[name]) if change.resource == POD]


@pytest.mark.parametrize("name", ["asked", "automatic", "Job annotated later", "refused, then allowed"])
def test_placement_pod_for_cloud_is_bound_once_and_launched_once(name: str) -> None:
    versions = pods(name)
    nodes = [version["spec"].get("nodeName", "") for version in versions]
    changes = [new for old, new in itertools.pairwise(nodes) if new != old]
    assert changes == [NODE]
    assert [due.instances for due in reference(name).bill.dues.values()] == [1]


def test_placement_pod_that_asks_for_nothing_stays() -> None:
    assert {version["spec"].get("nodeName", "") for version in pods("not automatic")} == {""}
    assert reference("not automatic").bill.dues == {}


def test_placement_automatic_pod_is_marked_before_it_is_bound() -> None:
    marked = [version["metadata"].get("annotations", {}).get("skysail.dev/automatic") for version in pods("automatic")]
    bound = [bool(version["spec"].get("nodeName")) for version in pods("automatic")]
    assert marked.index("true") < bound.index(True)


def test_placement_annotations_of_job_reach_pod() -> None:
    last = [version for version in pods("Job annotated later") if version["spec"].get("nodeName")][-1]
    assert last["metadata"]["annotations"]["modal-operator.io/gpu"] == "T4:1"


def test_placement_refused_pod_says_why_until_it_is_allowed() -> None:
    rows = [
        row
        for version in pods("refused, then allowed")
        for row in version.get("status", {}).get("conditions", ())
        if row["type"] == Condition.OFFLOAD
    ]
    assert next(row["reason"] for row in rows) == "PolicyDenied"
    assert "create an OffloadPolicy" in rows[0]["message"]
    assert rows[-1]["status"] == "True"


@pytest.mark.parametrize("name", SCENARIOS)
def test_placement_crash_after_any_effect_changes_nothing(name: str, court: Checker) -> None:
    court.knows(reference(name))
    faults = runner.faults_for(reference(name), "effect", "crash")
    assert court.violations(SCENARIOS[name], reference(name), faults) == []


@pytest.mark.parametrize("what", ["twin", "pause"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_placement_second_operator_changes_nothing(name: str, what: str, court: Checker) -> None:
    faults = runner.faults_for(reference(name), "effect", what)
    assert court.violations(SCENARIOS[name], reference(name), faults) == []


@pytest.mark.parametrize("what", WRITE_TROUBLES)
@pytest.mark.parametrize("name", ["asked", "automatic"])
def test_placement_failed_write_changes_nothing(name: str, what: str, court: Checker) -> None:
    faults = runner.faults_for(reference(name), "write", what)
    assert court.violations(SCENARIOS[name], reference(name), faults) == []


@pytest.mark.parametrize("what", ["unreachable", "server error", "stale"])
@pytest.mark.parametrize("name", ["asked", "automatic", "Job annotated later"])
def test_placement_failed_read_changes_nothing(name: str, what: str, court: Checker) -> None:
    faults = runner.faults_for(reference(name), "read", what)
    assert court.violations(SCENARIOS[name], reference(name), faults) == []


@pytest.mark.parametrize("what", ["drop", "repeat", "swap", "replay"])
@pytest.mark.parametrize("name", ["asked", "Job annotated later"])
def test_placement_watch_that_lies_changes_nothing(name: str, what: str, court: Checker) -> None:
    faults = runner.faults_for(reference(name), "event", what)
    assert court.violations(SCENARIOS[name], reference(name), faults) == []
