"""What became of a container, from the provider's words and from what was written."""

from __future__ import annotations

import msgspec
import pytest

from skysail.node.sync.planner import plan
from skysail.node.sync.snapshot import history, lost_runs
from tests.unit.node.pods import NOW, ended, pod, run, running, snapshot, written


def told(runs, **spec):
    of = pod(**spec)
    return written(of, plan(snapshot(of, runs)).status)


def test_a_run_that_was_told_and_is_unknown_now_is_lost():
    found = lost_runs(told({run(): running()}), {}, NOW)
    assert list(found) == [run()]
    assert (found[run()].code, found[run()].reason) == (137, "Lost")


def test_a_run_that_the_provider_knows_is_not_lost():
    assert lost_runs(told({run(): running()}), {run(): running()}, NOW) == {}


def test_a_run_that_has_ended_cannot_be_lost():
    assert lost_runs(told({run(): ended(0)}, restartPolicy="Never"), {}, NOW) == {}


def test_the_latest_run_counts_and_the_one_before_is_its_past():
    past = history(snapshot(pod(), {run("main", 0): ended(1), run("main", 1): running()}), "main")
    assert (past.number, past.is_running) == (1, True)
    assert past.previous is not None
    assert past.previous.code == 1


def test_a_container_that_never_ran_has_no_history():
    assert history(snapshot(pod()), "main").number == -1


def test_what_was_written_is_remembered_without_the_provider():
    back_off = told({run("main", 0): ended(1), run("main", 1): ended(4)}, restartPolicy="Always")
    past = history(snapshot(back_off), "main")
    assert (past.number, past.ended and past.ended.code, past.restart_delay) == (1, 4, 10.0)


def test_an_end_that_was_told_is_not_taken_back():
    past = history(snapshot(told({run(): ended(9)}, restartPolicy="OnFailure"), {run(): running()}), "main")
    assert past.ended is not None
    assert past.ended.code == 9


@pytest.mark.parametrize("state", [running(), ended(0)])
def test_what_the_provider_calls_an_image_is_shown_and_kept_when_it_forgets(state):
    named = {run(): msgspec.structs.replace(state, image_id="modal.com/sb-1")}
    kept = told(named)
    for runs in (named, {}):
        shown = plan(snapshot(kept, runs)).status
        assert shown["containerStatuses"][0]["imageID"] == "modal.com/sb-1"


def test_an_image_without_another_name_is_known_by_its_own():
    assert told({run(): running()}).status.container_statuses[0]["imageID"] == "skysail://busybox"
