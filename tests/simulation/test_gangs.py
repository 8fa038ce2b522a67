"""TrainingJobs with a gang scheduler: how each story ends, and that a crash does not change it.

The scenarios in which a gang scheduler decides when an attempt starts and ends; `tests/fault_injection` has all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from skysail.kube.api.resources import JOB
from tests.simulation import runner
from tests.simulation.gangs import GANG, SCENARIOS, reference
from tests.simulation.training import NAME

if TYPE_CHECKING:
    from tests.simulation.coverage_report import Checker

# The phase, what ended each attempt, how many retries that cost, and what stands at the scheduler's.
ENDS: dict[str, tuple[str, list[str | None], int, str]] = {
    "admitted": ("Succeeded", ["Succeeded"], 0, "Workload"),
    "waiting, then admitted": ("Succeeded", ["Succeeded"], 0, "Workload"),
    "unavailable, then installed": ("Succeeded", ["Succeeded"], 0, "Workload"),
    "evicted while running": ("Succeeded", ["Evicted", "Succeeded"], 0, "Workload"),
    "deactivated, then active": ("Succeeded", ["Evicted", "Succeeded"], 0, "Workload"),
    "Workload deleted by hand": ("Succeeded", ["Evicted", "Succeeded"], 0, "Workload"),
    "a restart keeps its quota": ("Succeeded", ["Failed", "Succeeded"], 1, "Workload"),
    "held gives its quota back": ("Suspended", ["Suspended"], 0, ""),
    "another size asks anew": ("Running", ["WorldSizeChanged", None], 0, "Workload"),
    "no longer asked for": ("Succeeded", ["SpecChanged", "Succeeded"], 0, ""),
    "PodGroup": ("Succeeded", ["Succeeded"], 0, ""),
    "PodGroup deleted by hand": ("Running", [None], 0, "PodGroup"),
    "PodGroup unavailable": ("Pending", [], 0, ""),
}
_CRASHES = ("waiting, then admitted", "unavailable, then installed", "evicted while running")


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_gang_ends_as_it_should_when_nothing_goes_wrong(name: str) -> None:
    outcome = reference(name)
    status = _status(name)
    causes = [attempt.get("cause") for attempt in status.get("attempts", [])]
    left = "".join(kind for kind in ("Workload", "PodGroup") if f"{kind} {GANG}" in outcome.end)
    assert (status["phase"], causes, status.get("retries", 0), left) == ENDS[name]
    assert outcome.errors == []


def test_every_story_has_its_end() -> None:
    assert list(ENDS) == list(SCENARIOS)


@pytest.mark.parametrize("name", [name for name, end in ENDS.items() if end[0] == "Succeeded" and end[3]])
def test_a_workload_is_finished_with_its_job(name: str) -> None:
    rows = reference(name).end[f"Workload {GANG}"]["status"]["conditions"]
    assert ("Finished", "True", "Succeeded") in [(row["type"], row["status"], row["reason"]) for row in rows]


def test_pods_run_where_the_flavor_says() -> None:
    spec = reference("admitted").end[f"Job {NAME}-worker-0"]["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"pool": "spot"}
    assert spec["tolerations"] == [{"key": "spot", "operator": "Exists"}]


def test_pods_of_volcano_name_their_group_and_its_scheduler() -> None:
    template = reference("PodGroup deleted by hand").end[f"Job {NAME}-worker-0"]["spec"]["template"]
    assert template["metadata"]["annotations"] == {"scheduling.k8s.io/group-name": GANG}
    assert template["spec"]["schedulerName"] == "volcano"


def test_nothing_runs_without_the_scheduler_that_was_asked_for() -> None:
    name = "PodGroup unavailable"
    assert [line for line in reference(name).end if line.startswith(("Job ", "Pod "))] == []
    rows = {row["type"]: row for row in _status(name)["conditions"]}
    assert rows["GangUnavailable"]["status"] == "True"
    assert "set scheduling.gang to none" in rows["Running"]["message"]


def test_no_job_is_made_before_the_workload_is_admitted() -> None:
    for name in ("waiting, then admitted", "unavailable, then installed", "evicted while running"):
        assert _made_unadmitted(name) == [], name


def test_a_restart_asks_for_nothing_anew() -> None:
    made = [change for change in runner.journal(SCENARIOS["a restart keeps its quota"]) if change.verb == "create"]
    assert [change.resource.kind for change in made].count("Workload") == 1


def test_quota_is_given_back_only_when_the_last_pod_is_gone() -> None:
    pods: set[str] = set()
    for change in runner.journal(SCENARIOS["evicted while running"]):
        name = change.after["metadata"]["name"]
        if change.resource.kind == "Pod":
            pods = pods - {name} if change.gone else pods | {name}
        if (
            change.resource.kind == "Workload"
            and _is(change.after, "Evicted")
            and not _is(change.after, "QuotaReserved")
        ):
            assert pods == set()


@pytest.mark.parametrize("name", _CRASHES)
def test_a_crash_after_any_effect_changes_nothing(name: str, court: Checker) -> None:
    court.knows(reference(name))
    faults = runner.faults_for(reference(name), "effect", "crash")
    assert court.violations(SCENARIOS[name], reference(name), faults) == []


def test_an_operator_that_hears_late_of_an_admission_does_not_end_what_it_began(court: Checker) -> None:
    faults = runner.faults_for(reference("admitted"), "event", "drop")
    assert court.violations(SCENARIOS["admitted"], reference("admitted"), faults) == []


def _status(name: str) -> dict[str, Any]:
    status: dict[str, Any] = reference(name).end[f"TrainingJob {NAME}"]["status"]
    return status


def _is(workload: dict[str, Any], type_: str) -> bool:
    rows = workload.get("status", {}).get("conditions", [])
    return any((row["type"], row["status"]) == (type_, "True") for row in rows)


def _made_unadmitted(name: str) -> list[str]:
    """Jobs that were made while the Workload was not admitted, or was evicted."""
    is_admitted, found = False, []
    for change in runner.journal(SCENARIOS[name]):
        if change.resource.kind == "Workload":
            is_admitted = _is(change.after, "Admitted") and not _is(change.after, "Evicted") and not change.gone
        if change.resource == JOB and change.verb == "create" and not is_admitted:
            found.append(change.after["metadata"]["name"])
    return found
