"""A TrainingJob in every story: how it ends when nothing goes wrong, and that it ends so when something does.

Here are the troubles that every change should be tried with; `tests/fault_injection` has all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.simulation import runner
from tests.simulation.faults import InjectedFault
from tests.simulation.training import NAME, SCENARIOS, reference

if TYPE_CHECKING:
    from tests.simulation.coverage_report import Checker

# The phase, what ended each attempt, how many retries that cost, and whose pods are left.
ENDS: dict[str, tuple[str | None, list[str | None], int, list[str]]] = {
    "success": ("Succeeded", ["Succeeded"], 0, ["worker-0-0-0", "worker-0-1-0"]),
    "success of one worker": ("Succeeded", ["Succeeded"], 0, ["worker-0-0-0"]),
    "chief done, servers end": ("Succeeded", ["Succeeded"], 0, ["chief-0-0-0"]),
    "failure, then restart of the gang": (
        "Succeeded",
        ["Failed", "Succeeded"],
        1,
        ["worker-1-0-0", "worker-1-1-0"],
    ),
    "restart of one index": ("Succeeded", ["Succeeded"], 0, ["chief-0-0-0"]),
    "an index that never recovers": ("Failed", ["Failed"], 1, [f"worker-0-1-{life}" for life in range(4)]),
    "crash loop until no retry is left": ("Failed", ["Failed", "Failed"], 2, ["worker-1-0-0"]),
    "never restarted": ("Failed", ["Failed"], 1, ["worker-0-0-0"]),
    "preempted": ("Succeeded", ["Preempted", "Succeeded"], 0, ["worker-1-0-0", "worker-1-1-0"]),
    "preempted, resumes": ("Succeeded", ["Preempted", "Succeeded"], 0, ["worker-1-0-0", "worker-1-1-0"]),
    "node lost": ("Succeeded", ["NodeLost", "Succeeded"], 0, ["worker-1-0-0", "worker-1-1-0"]),
    "node stopped, never restarted": ("Succeeded", ["NodeLost", "Succeeded"], 0, ["worker-1-0-0", "worker-1-1-0"]),
    "suspend and resume": ("Succeeded", ["Suspended", "Succeeded"], 0, ["worker-1-0-0", "worker-1-1-0"]),
    "created suspended": ("Succeeded", ["Succeeded"], 0, ["worker-0-0-0", "worker-0-1-0"]),
    "scale 2, 4, 1": ("Running", ["WorldSizeChanged", "WorldSizeChanged", None], 0, ["worker-2-0-0"]),
    "scale in place": ("Running", [None], 0, ["worker-0-0-0"]),
    "scale in place after another limit": (
        "Running",
        [None],
        0,
        ["worker-0-0-0", "worker-0-1-0", "worker-0-2-0"],
    ),
    "another image": ("Succeeded", ["SpecChanged", "Succeeded"], 0, ["worker-1-0-0", "worker-1-1-0"]),
    "wrong, then corrected": ("Succeeded", ["SpecChanged", "Succeeded"], 0, ["worker-1-0-0", "worker-1-1-0"]),
    "wrong while it runs": ("Running", [None], 0, ["worker-0-0-0", "worker-0-1-0"]),
    "deadline": ("Failed", ["DeadlineExceeded"], 0, []),
    "deadline, and pods are kept": ("Failed", ["DeadlineExceeded"], 0, []),
    "forgotten": (None, [], 0, []),
    "cleaned": ("Succeeded", ["Succeeded"], 0, []),
    "kept": ("Succeeded", ["Succeeded"], 0, ["chief-0-0-0"]),
    "deleted": (None, [], 0, []),
    "deleted, checkpoints stay": (None, [], 0, []),
    "deleted with its checkpoints": (None, [], 0, []),
    "failed, checkpoints stay": (None, [], 0, []),
    "succeeded, checkpoints go": (None, [], 0, []),
    "succeeded, forgotten at once, checkpoints go": (None, [], 0, []),
    "retained after another thought": (None, [], 0, []),
    "a stranger deletes a Job": ("Succeeded", ["Deleted", "Succeeded"], 0, ["worker-1-0-0", "worker-1-1-0"]),
    "a stranger deletes a Job and not its pods": (
        "Succeeded",
        ["Deleted", "Succeeded"],
        0,
        ["worker-1-0-0", "worker-1-1-0"],
    ),
    "a stranger deletes a pod": ("Succeeded", ["Deleted", "Succeeded"], 0, ["worker-1-0-0", "worker-1-1-0"]),
    "a stranger deletes a pod that saves": (
        "Succeeded",
        ["Deleted", "Succeeded"],
        0,
        ["worker-1-0-0", "worker-1-1-0"],
    ),
    "a stranger deletes the only pod, which saves": ("Succeeded", ["Deleted", "Succeeded"], 0, ["worker-1-0-0"]),
    "the node of one that saves is drained": ("Succeeded", ["Preempted", "Succeeded"], 0, ["worker-1-0-0"]),
    "the node of one that is done is drained": ("Running", [None], 0, ["worker-0-0-0"]),
    "deleted, and trained anew": ("Succeeded", ["Succeeded"], 0, ["worker-0-0-1", "worker-0-1-1"]),
}
# Where the order of events matters most: an attempt ends, and another one begins.
_TOLD_TWICE = ("failure, then restart of the gang", "preempted", "preempted, resumes", "scale 2, 4, 1")


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_job_ends_as_it_should_when_nothing_goes_wrong(name: str) -> None:
    outcome = reference(name)
    status: dict[str, Any] = outcome.end.get(f"TrainingJob {NAME}", {}).get("status", {})
    pods = [line.removeprefix(f"Pod {NAME}-") for line in outcome.end if line.startswith("Pod ")]
    causes = [attempt.get("cause") for attempt in status.get("attempts", [])]
    assert (status.get("phase"), causes, status.get("retries", 0), pods) == ENDS[name]
    assert outcome.errors == []


def test_an_attempt_begins_at_the_checkpoint_that_was_told() -> None:
    status = reference("preempted, resumes").end[f"TrainingJob {NAME}"]["status"]
    saved = {"path": "/checkpoints/120", "step": 120, "saveTime": "2026-01-01T01:00:00Z"}
    assert [attempt.get("resumedFrom") for attempt in status["attempts"]] == [None, saved]
    assert (status["checkpoint"], status["progress"]) == (saved, {"percent": 12, "lastUpdatedTime": True})


def test_retention_of_checkpoints_decides_whether_their_pvc_outlives_the_job() -> None:
    left = {name: [line for line in reference(name).end if line.startswith("PersistentVolumeClaim")] for name in ENDS}
    kept = {name for name, pvcs in left.items() if pvcs and f"TrainingJob {NAME}" not in reference(name).end}
    assert kept == {"deleted, checkpoints stay", "failed, checkpoints stay", "retained after another thought"}
    pvc = reference("deleted, checkpoints stay").end[f"PersistentVolumeClaim {NAME}-checkpoints"]["metadata"]
    assert (pvc["labels"]["trainingjob.ml.example.com/name"], pvc.get("ownerReferences", [])) == (NAME, [])


def test_every_story_has_its_end() -> None:
    assert list(ENDS) == list(SCENARIOS)


def test_a_service_is_there_only_with_more_than_one_worker() -> None:
    with_service = {name for name in SCENARIOS if f"Service {NAME}-workers" in reference(name).end}
    one = {"a stranger deletes the only pod, which saves", "the node of one that saves is drained"}
    alone = {"success of one worker", "scale 2, 4, 1", "forgotten"} | one
    alone |= {name for name in SCENARIOS if f"TrainingJob {NAME}" not in reference(name).end}
    assert with_service == SCENARIOS.keys() - alone


def test_a_failure_says_who_where_and_how() -> None:
    status = reference("never restarted").end[f"TrainingJob {NAME}"]["status"]
    told = {"role": "worker", "index": 0, "pod": "mnist-worker-0-0-0", "node": "node-0", "exitCode": 1}
    assert status["failure"] == {**told, "reason": "Error"}
    assert status["attempts"][0]["failure"] == status["failure"]


def test_no_pod_of_an_attempt_is_made_before_the_last_of_the_one_before_is_gone() -> None:
    for name in ("scale 2, 4, 1", "preempted", "node lost", "suspend and resume"):
        assert _overlaps(name) == [], name


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_crash_after_any_effect_changes_nothing(name: str, court: Checker) -> None:
    court.knows(reference(name))
    faults = runner.faults_for(reference(name), "effect", "crash")
    assert court.violations(SCENARIOS[name], reference(name), faults) == []


@pytest.mark.parametrize("what", ["reply lost, done", "reply lost, not done"])
@pytest.mark.parametrize("name", _TOLD_TWICE)
def test_a_lost_reply_changes_nothing(name: str, what: str, court: Checker) -> None:
    faults = runner.faults_for(reference(name), "write", what)
    assert court.violations(SCENARIOS[name], reference(name), faults) == []


@pytest.mark.parametrize("what", ["repeat", "replay", "drop"])
@pytest.mark.parametrize("name", _TOLD_TWICE)
def test_a_watch_that_repeats_itself_or_forgets_changes_nothing(name: str, what: str, court: Checker) -> None:
    faults = runner.faults_for(reference(name), "event", what)
    assert court.violations(SCENARIOS[name], reference(name), faults) == []


@pytest.mark.parametrize("back", [4, 12, 22])
@pytest.mark.parametrize("name", _TOLD_TWICE)
def test_an_operator_that_is_told_the_past_begins_nothing_twice(name: str, back: int, court: Checker) -> None:
    ends = [at for at, effect in enumerate(reference(name).effects, start=1) if effect.is_end]
    faults = [InjectedFault("effect", at, "crash", back=back) for at in ends]
    assert court.violations(SCENARIOS[name], reference(name), faults) == []


def _overlaps(name: str) -> list[str]:
    """Pods that were made while one of an earlier attempt was there."""
    there: dict[str, int] = {}
    found = []
    for change in runner.journal(SCENARIOS[name]):
        if change.resource.kind != "Pod":
            continue
        pod, number = change.after["metadata"]["name"], int(change.after["metadata"]["labels"]["skysail.dev/attempt"])
        if change.verb == "create" and any(other < number for other in there.values()):
            found.append(pod)
        there[pod] = number
        if change.gone:
            del there[pod]
    return found
