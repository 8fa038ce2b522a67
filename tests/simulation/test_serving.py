"""A model in every story: how it ends when nothing goes wrong, and that it ends so when something does.

Here are the troubles that every change should be tried with; `tests/fault_injection` has all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.simulation import runner
from tests.simulation.faults import InjectedFault
from tests.simulation.serving import KINDS, SCENARIOS, reference

if TYPE_CHECKING:
    from tests.simulation.coverage_report import Checker
    from tests.simulation.watches import Change

# The phase, the number of the revision that is served, the outcomes in the history, and the conditions that hold.
End = tuple[str | None, int, list[str], set[str]]
_READY = {"Accepted", "ModelDownloaded", "Ready"}
_FAILED_UPDATE = _READY | {"UpdateFailed"}
_ROLLED_BACK = _FAILED_UPDATE | {"RolledBack"}
ENDS: dict[str, End] = {
    "served": ("Ready", 1, ["served"], _READY),
    "validated and served": ("Ready", 1, ["served"], _READY | {"ModelValidated"}),
    "in the image": ("Ready", 1, ["served"], _READY),
    "updated": ("Ready", 2, ["served", "served"], _READY),
    "download fails": ("Failed", 0, [], {"Accepted"}),
    "download fails, then corrected": ("Ready", 1, ["served"], _READY),
    "download of an update fails": ("Ready", 1, ["served"], _FAILED_UPDATE - {"ModelDownloaded"}),
    "validation of an update fails, then corrected": (
        "Ready",
        2,
        ["served", "served"],
        _READY | {"ModelValidated"},
    ),
    "download fails twice in a way that passes": ("Ready", 1, ["served"], _READY),
    "node agents die again and again": ("Ready", 1, ["served"], _READY),
    "node agents die while an update is made": ("Ready", 2, ["served", "served"], _READY),
    "node agents die, and then the source is away": ("Ready", 1, ["served"], _READY),
    "MLModel, while node agents die": ("Ready", 1, ["served"], _READY),
    "servers crash": ("Failed", 0, [""], {"Accepted", "ModelDownloaded"}),
    "servers crash, then corrected": ("Ready", 2, ["", "served"], _READY),
    "servers of an update crash": ("Ready", 1, ["served", "failed"], _ROLLED_BACK),
    "servers of an update crash, then corrected": ("Ready", 3, ["served", "", "served"], _READY),
    "servers of an update crash, and it is taken back": ("Ready", 1, ["served", ""], _READY),
    "servers of an update never answer": ("Ready", 1, ["served", "failed"], _ROLLED_BACK),
    "back to a revision by its number": ("Ready", 1, ["served", "served"], _READY | {"RolledBack"}),
    "back, and forth": ("Ready", 2, ["served", "served"], _READY),
    "back to a revision as soon as another is late": ("Ready", 1, ["served", "served", ""], _READY | {"RolledBack"}),
    "back to a revision that is not there": ("Ready", 1, ["served"], _FAILED_UPDATE),
    "scaled by load": ("Ready", 1, ["served"], _READY),
    "scaled by load, then not": ("Ready", 1, ["served"], _READY),
    "scaled by load and updated": ("Ready", 2, ["served", "served"], _READY),
    "more servers, then fewer": ("Ready", 1, ["served"], _READY),
    "another mind while downloading": ("Ready", 1, ["served"], _READY),
    "another mind while rolling out": ("Ready", 3, ["served", "", "served"], _READY),
    "deleted": (None, 0, [], set()),
    "deleted while downloading": (None, 0, [], set()),
    "deleted while rolling out": (None, 0, [], set()),
    "deleted, and served anew": ("Ready", 1, ["served"], _READY),
    "a stranger deletes the download": ("Ready", 1, ["served"], _READY),
    "a stranger deletes a Service": ("Ready", 1, ["served"], _READY),
    "a stranger changes the servers and a Service": ("Ready", 1, ["served"], _READY),
    "a stranger deletes the servers": ("Ready", 1, ["served"], _READY),
    "a stranger takes away what became of a revision": ("Ready", 1, ["served"], _READY),
    "taken over from another operator": ("Ready", 1, ["served"], _READY),
    "MLModel": ("Ready", 1, ["served"], _READY),
    "MLModel updated": ("Ready", 2, ["served", "served"], _READY),
    "MLModel, whose update crashes": ("Ready", 1, ["served", "failed"], _ROLLED_BACK),
    "MLModel to none and back": ("Ready", 1, ["served"], _READY),
    "MLModel, whose claim a stranger deletes": ("Ready", 1, ["served"], _READY),
    "MLModel hidden": ("Ready", 1, ["served"], _READY),
    "MLModel deleted": (None, 0, [], set()),
}
# How many servers there are at the end, where there are not two.
_SERVERS = {"scaled by load": 3, "scaled by load and updated": 3, "servers crash": 1}
_NONE = {name for name, (phase, *_) in ENDS.items() if phase is None} | {"download fails"}
# Where the order of events matters most: a revision follows another, or is undone.
_TOLD_TWICE = ("updated", "servers of an update crash")


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_model_ends_as_it_should_when_nothing_goes_wrong(name: str) -> None:
    outcome = reference(name)
    status = _status(name)
    revisions = [found for line, found in outcome.end.items() if line.startswith("ControllerRevision ")]
    in_order = sorted(revisions, key=lambda found: found["revision"])
    outcomes = [found["metadata"]["labels"].get("skysail.dev/outcome", "") for found in in_order]
    holding = {row["type"] for row in status.get("conditions", []) if row["status"] == "True"}
    assert (status.get("phase"), status.get("revision", 0), outcomes, holding) == ENDS[name]
    assert (outcome.errors, outcome.bill.wrong) == ([], [])


@pytest.mark.parametrize("name", SCENARIOS)
def test_as_many_servers_are_left_as_are_wanted(name: str) -> None:
    wanted = 0 if name in _NONE else _SERVERS.get(name, 2)
    pods = [found for line, found in reference(name).end.items() if line.startswith("Pod ")]
    assert sum(1 for pod in pods if pod["metadata"]["ownerReferences"][0]["kind"] == "ReplicaSet") == wanted


def test_every_story_has_its_end() -> None:
    assert list(ENDS) == list(SCENARIOS)


def test_nothing_is_left_of_a_model_that_was_deleted() -> None:
    for name, (phase, *_) in ENDS.items():
        if phase is None:
            assert [line for line in reference(name).end if not line.startswith("Namespace ")] == []


def test_a_failure_says_which_step_and_how() -> None:
    crashed = _status("servers of an update crash")
    failure = crashed["failure"]
    assert (failure["step"], failure["reason"], failure["exitCode"]) == ("Deploy", "CrashLoop", 37)
    assert crashed["version"] == "v1"
    missing = _status("download of an update fails")["failure"]
    assert (missing["step"], missing["reason"], missing["exitCode"], missing["attempts"]) == (
        "Download",
        "NotFound",
        78,
        1,
    )


_INTERRUPTED = (
    "node agents die again and again",
    "node agents die while an update is made",
    "MLModel, while node agents die",
)


@pytest.mark.parametrize("name", _INTERRUPTED)
def test_a_download_that_is_interrupted_has_not_failed(name: str) -> None:
    """Nothing is counted, nobody is told of a failure, and the next attempt comes in seconds."""
    told = [change.after.get("status", {}) for change in runner.journal(SCENARIOS[name]) if _is_model(change)]
    rows = [row for status in told for row in status.get("conditions", [])]
    failures = [status["failure"] for status in told if status.get("failure")]
    assert {status.get("phase") for status in told}.isdisjoint({"Failed"})
    assert {row["reason"] for row in rows}.isdisjoint({"DownloadFailed", "CrashLoop", "Retrying"})
    assert [row["type"] for row in rows if (row["type"], row["status"]) == ("UpdateFailed", "True")] == []
    assert {(found["reason"], found.get("attempts", 0)) for found in failures} == {("Interrupted", 0)}


def test_an_interruption_is_no_attempt_beside_those_that_fail() -> None:
    changes = runner.journal(SCENARIOS["node agents die, and then the source is away"])
    found = [change.after.get("status", {}).get("failure") for change in changes if _is_model(change)]
    tries = [(each["reason"], each.get("attempts", 0)) for each in found if each]
    assert [row for place, row in enumerate(tries) if row not in tries[:place]] == [
        ("Interrupted", 0),
        ("Unreachable", 1),
    ]


def _is_model(change: Change) -> bool:
    return change.resource in {kind.resource for kind in KINDS}


def test_servers_of_a_revision_that_failed_do_not_stay() -> None:
    """The template is that of the revision which is served."""
    for name in ("servers of an update crash", "servers of an update never answer", "MLModel, whose update crashes"):
        end = reference(name).end
        good = next(row for line, row in end.items() if line.startswith("Control") and row["revision"] == 1)
        deployment = next(row for line, row in end.items() if line.startswith("Deployment "))
        label = "skysail.dev/revision"
        assert deployment["spec"]["template"]["metadata"]["labels"][label] == good["metadata"]["labels"][label], name


def test_what_a_stranger_changed_is_as_it_was_and_what_he_added_stays():
    changed, usual = reference("a stranger changes the servers and a Service").end, reference("served").end
    assert changed["Service iris-service"]["spec"] == usual["Service iris-service"]["spec"]
    assert changed["Deployment iris"]["spec"] == {**usual["Deployment iris"]["spec"], "paused": True}


def test_what_an_operator_before_us_made_ends_when_ours_has_followed_it() -> None:
    end = reference("taken over from another operator").end
    assert [line for line in end if line.startswith("Deployment ")] == ["Deployment iris"]
    selector = end["Service svc-iris"]["spec"]["selector"]
    assert (selector["model"], selector["type"]) == ("iris", "inference")


def test_each_revision_is_downloaded_once_unless_that_fails() -> None:
    jobs = {name: reference(name).history["create Job validate-iris"] for name in SCENARIOS}
    assert {name: jobs[name] for name in ("served", "updated", "back, and forth")} == {
        "served": 1,
        "updated": 2,
        "back, and forth": 2,
    }
    assert jobs["download fails twice in a way that passes"] == 3
    lost = reference("MLModel, whose claim a stranger deletes").history
    assert (lost["create PersistentVolumeClaim iris-pvc"], lost["create Job iris-download-job"]) == (2, 2)


@pytest.mark.parametrize(
    ("name", "most"), [("in the image", 3), ("served", 5), ("validated and served", 6), ("MLModel", 6)]
)
def test_a_model_tells_little_on_its_way(name: str, most: int) -> None:
    """That it begins, that it downloads, validates and rolls out where that lasts, that it answers, and its end."""
    assert sum(1 for effect in reference(name).effects if effect.path.endswith("/status")) <= most


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


def test_a_second_operator_changes_nothing(court: Checker) -> None:
    name = "servers of an update crash"
    faults = runner.faults_for(reference(name), "effect", "twin")
    assert court.violations(SCENARIOS[name], reference(name), faults) == []


@pytest.mark.parametrize("what", ["repeat", "drop", "deafness"])
def test_a_watch_that_repeats_itself_or_forgets_changes_nothing(what: str, court: Checker) -> None:
    name = "servers of an update crash"
    faults = runner.faults_for(reference(name), "event", what)[::4]
    assert court.violations(SCENARIOS[name], reference(name), faults) == []


@pytest.mark.parametrize("back", [4, 12, 22])
@pytest.mark.parametrize("name", _TOLD_TWICE)
def test_an_operator_that_is_told_the_past_brings_nothing_back(name: str, back: int, court: Checker) -> None:
    ends = [at for at, effect in enumerate(reference(name).effects, start=1) if effect.is_end]
    faults = [InjectedFault("effect", at, "crash", back=back) for at in ends]
    assert court.violations(SCENARIOS[name], reference(name), faults) == []


def _status(name: str) -> dict[str, Any]:
    found = [row for line, row in reference(name).end.items() if line.startswith(("ModelDeployment ", "MLModel "))]
    status: dict[str, Any] = found[0].get("status", {}) if found else {}
    return status
