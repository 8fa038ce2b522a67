"""State of a gang from the status of its call and its markers."""

from __future__ import annotations

import pytest

from skysail.cloud.modal.gangs.markers import Marker
from skysail.cloud.modal.gangs.state import GangFacts, assess


def start(rank, task="", at=10.0):
    return Marker(kind="start", rank=rank, task=task or f"ta-{rank}", at=at)


def end(rank, code=0, at=20.0, **fields):
    return Marker(kind="exit", rank=rank, task=f"ta-{rank}", at=at, code=code, **fields)


STARTED = (start(0), start(1, at=11.0))


def gang(status, *markers, **fields):
    known = {"size": 2, "created": 0.0, "now": 100.0, "ended_seen": None if status == "pending" else 30.0}
    return assess(GangFacts(**{**known, "status": status, "markers": markers, **fields}))


def codes(found):
    return [rank.exit.code for rank in found.ranks if rank.exit]


def test_gang_without_all_starts_has_not_started():
    found = gang("pending", start(0))
    assert (found.started, found.exit) == (None, None)
    assert [rank.state for rank in found.ranks] == ["running", "starting"]


def test_gang_starts_with_its_last_rank():
    assert gang("pending", *STARTED).started == 11.0


def test_rank_that_has_exited_runs_until_the_call_ends():
    found = gang("pending", *STARTED, end(0))
    assert found.exit is None
    assert codes(found) == []


def test_success_has_the_codes_of_the_markers():
    found = gang("success", *STARTED, end(0), end(1, at=25.0))
    assert codes(found) == [0, 0]
    assert (found.exit.code, found.exit.reason, found.exit.ended) == (0, "Completed", 25.0)


def test_end_of_a_call_waits_for_late_markers():
    assert gang("failure", *STARTED, end(0, 143, is_aborted=True), now=35.0).exit is None
    found = gang("failure", *STARTED, end(0, 143, is_aborted=True), now=41.0)
    assert codes(found) == [143, 137]
    assert found.exit.message.startswith("Rank 1 ended with exit code 137.")


def test_rank_that_failed_first_is_named():
    found = gang("failure", *STARTED, end(0, 143, at=21.0, is_aborted=True), end(1, 37))
    assert (found.exit.code, found.exit.message) == (37, "Rank 1 ended with exit code 37.")


@pytest.mark.parametrize(
    ("status", "markers", "fields", "reasons"),
    [
        ("failure", (end(0, 143, is_aborted=True), end(1, 37)), {}, ["GangFailed", "Error"]),
        ("failure", (end(0, 143, is_aborted=True),), {}, ["GangFailed", "Error"]),
        ("pending", (end(1, 3),), {}, ["GangFailed", "Error"]),
        ("failure", (end(0, 0), end(1, 3)), {}, ["Completed", "Error"]),
        ("terminated", (end(0, 143, is_aborted=True), end(1, 143, is_aborted=True)), {"is_asked": True}, ["Error"] * 2),
        ("failure", (end(0, 143, is_aborted=True), end(1, 143, is_aborted=True)), {}, ["Error"] * 2),
    ],
)
def test_ranks_that_ended_because_of_another_one_say_so(status, markers, fields, reasons):
    found = gang(status, *STARTED, *markers, **fields)
    assert [rank.exit.reason for rank in found.ranks] == reasons
    assert found.exit.reason != "GangFailed"


def test_failure_that_does_not_end_the_call_is_final_after_a_while():
    assert gang("pending", *STARTED, end(1, 3), now=60.0).exit is None
    found = gang("pending", *STARTED, end(1, 3), now=66.0)
    assert (found.exit.code, codes(found)) == (3, [137, 3])


@pytest.mark.parametrize(
    ("status", "fields", "want"),
    [
        ("timeout", {}, (124, "DeadlineExceeded")),
        ("terminated", {}, (137, "Lost")),
        ("terminated", {"is_asked": True}, (143, "Error")),
        ("gone", {}, (137, "Lost")),
        ("start-failed", {}, (128, "StartError")),
        ("none", {"now": 119.0}, None),
        ("none", {"now": 121.0}, (137, "Lost")),
    ],
)
def test_ends_from_outside_are_distinguished(status, fields, want):
    exit_ = gang(status, *STARTED, **fields).exit
    assert (exit_ and (exit_.code, exit_.reason)) == want


def test_failure_before_any_start_is_a_start_error():
    assert gang("failure").exit.reason == "StartError"


def test_gang_that_waits_too_long_is_lost():
    assert gang("pending", start(0), startup_seconds=100.0).exit is None
    assert gang("pending", start(0), startup_seconds=99.0).exit.reason == "Lost"
    assert gang("pending", *STARTED, startup_seconds=99.0).exit is None


@pytest.mark.parametrize(
    "marker",
    [start(1, "ta-new"), end(1, 143, is_aborted=True, is_interrupted=True)],
    ids=["started-again", "interrupted"],
)
def test_gang_whose_containers_are_taken_is_lost(marker):
    found = gang("pending", *STARTED, marker)
    assert found.exit.reason == "Lost"
    assert "preempted" in found.exit.message
    assert gang("terminated", *STARTED, marker, is_asked=True).exit.reason != "Lost"


def test_one_pod_ends_with_the_worst_code_of_ranks_that_ended_by_themselves():
    markers = (*STARTED, end(0, 3), end(1, 143, at=19.0, is_aborted=True))
    found = gang("failure", *markers, is_one_pod=True)
    assert (found.exit.code, found.ranks) == (3, ())
    assert gang("failure", *STARTED, end(0, 3), end(1, 9), is_one_pod=True).exit.code == 9


def test_forged_ranks_do_not_count():
    found = gang("success", *STARTED, start(7), end(0), end(1), end(7, 5))
    assert (found.exit.code, len(found.ranks)) == (0, 2)
