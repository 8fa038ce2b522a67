"""A pod's `activeDeadlineSeconds` is a span: whoever sets a clock neither ends a pod nor gives it more time."""

from __future__ import annotations

import asyncio

import pytest

from skysail.kube.api.objects import Object
from skysail.kube.api.resources import POD
from skysail.node.sync.planner import Stop, plan
from tests.support import virtual_time
from tests.unit.node.pods import NOW, ended, pod, run, running, snapshot
from tests.unit.node.test_kubelet import Harness

HOUR = 3600.0
JUMPS = [25 * HOUR, -HOUR]
STARTED = {"startTime": "2026-11-15T12:00:00Z"}
DELETED = {"deletionTimestamp": "2026-11-15T12:00:05Z", "deletionGracePeriodSeconds": 5}


@pytest.mark.parametrize("jump", JUMPS)
def test_a_clock_that_is_set_neither_ends_a_pod_nor_spares_it(jump):
    of = pod(activeDeadlineSeconds=10, restartPolicy="Never", status=STARTED)
    early = plan(snapshot(of, {run(): running()}, now=NOW + jump, active_seconds=4.0))
    assert (early.steps, early.requeue_after) == ((), 6.0)
    late = plan(snapshot(of, {run(): running()}, now=NOW + jump, active_seconds=10.0))
    assert [type(step) for step in late.steps] == [Stop]


@pytest.mark.parametrize("policy", ["OnFailure", "Always"])
def test_kubelet_deadline_exceeded_stays_final_despite_clock_skew_of_the_cloud(policy):
    of = pod(activeDeadlineSeconds=10, restartPolicy=policy, status=STARTED)
    made = plan(snapshot(of, {run(): ended(137, ago=HOUR)}, active_seconds=12.0))
    assert (made.status["phase"], made.status["reason"]) == ("Failed", "DeadlineExceeded")


def test_a_pod_that_was_deleted_in_time_is_not_late_because_somebody_looked_late():
    of = pod(activeDeadlineSeconds=10, restartPolicy="Always", status=STARTED, metadata=DELETED)
    made = plan(snapshot(of, {run(): ended(143, ago=-6)}, now=NOW + 60))
    assert (made.status["phase"], made.status["reason"]) == ("Failed", None)


@pytest.mark.parametrize("jump", JUMPS)
def test_a_node_counts_the_time_of_a_pod_by_the_clock_that_nobody_can_set(tmp_path, jump):
    async def play() -> None:
        harness = Harness(tmp_path)
        async with harness.keeper():
            await _create(harness, seconds=4 * HOUR)
            harness.jump = jump
            await asyncio.sleep(4 * HOUR - 60)
            assert harness.status["phase"] == "Running"
            await asyncio.sleep(120)
            assert (harness.status["phase"], harness.status["reason"]) == ("Failed", "DeadlineExceeded")

    virtual_time.run(play())


def test_a_node_that_begins_anew_does_not_give_a_pod_its_time_again(tmp_path):
    async def play() -> None:
        harness = Harness(tmp_path)
        async with harness.keeper():
            await _create(harness, seconds=HOUR)
            await asyncio.sleep(HOUR / 2)
        async with harness.keeper():
            await asyncio.sleep(HOUR / 2 - 60)
            assert harness.status["phase"] == "Running"
            await asyncio.sleep(120)
            assert (harness.status["phase"], harness.status["reason"]) == ("Failed", "DeadlineExceeded")

    virtual_time.run(play())


async def _create(harness: Harness, *, seconds: float) -> None:
    await harness.create()
    deadline = {"spec": {"activeDeadlineSeconds": int(seconds)}}
    await harness.user.merge_patch(POD, "default", "a", deadline, Object)
