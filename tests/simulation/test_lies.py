"""Clouds that do something else than they say, and clocks that are wrong: what is paid for is still one, and ours."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from skysail.cloud.errors import OutcomeUnknown
from skysail.cloud.simulated.faults import Fault
from tests.simulation.faults import InjectedFault
from tests.simulation.offload import STRANGER, VENDOR, CloudFixture, apply_pod
from tests.simulation.test_incidents import HOUR, Story, after, force_delete, work, work_for_hours

if TYPE_CHECKING:
    from skysail.cloud.account import Instance, LaunchSpec
    from tests.contract.api_dsl import Api

_DUPLICATE = Fault(on="create", at=1, what="duplicate")


def test_of_two_that_one_create_made_one_ends_and_the_other_works() -> None:
    story = Story(work, faults=(_DUPLICATE,), at_once=2)
    assert (story.rows("create"), story.billed, story.phase()) == (2, 0, "Succeeded")


def test_both_that_one_create_made_end_with_their_pod() -> None:
    story = Story(work_for_hours, force_delete, faults=(_DUPLICATE,), at_once=2)
    assert (story.rows("create"), story.billed, story.phase()) == (2, 0, None)


def test_both_end_although_listings_show_one_of_them_only() -> None:
    """The listing leaves out every other instance, and says that it is complete."""
    lie = Fault(on="list", what="partial-lie", until=after(HOUR))
    story = Story(work_for_hours, force_delete, faults=(_DUPLICATE, lie), at_once=2)
    assert (story.rows("create"), story.billed, story.phase()) == (2, 0, None)


class Spacious(CloudFixture):
    """With a second stranger, so that a listing that leaves out every other one leaves out ours."""

    def __init__(self, *script: Fault) -> None:
        super().__init__(*script)
        self.account.inject_orphan(claim="also theirs", cluster=STRANGER)


def test_a_listing_that_leaves_out_what_runs_ends_nothing_and_doubles_nothing() -> None:
    lie = Fault(on="list", what="partial-lie", since=after(60.0))
    story = Story(work_for_hours, faults=(lie,), cloud_fixture=Spacious)
    assert (story.rows("create"), story.rows("end asked"), story.phase()) == (1, 0, "Running")


class Slow(CloudFixture):
    """Gives no answer to the first create, and carries it out as late as it says that it may."""

    delay = VENDOR.terms.create_timeout - 10.0

    def __init__(self, *script: Fault) -> None:
        super().__init__(*script)
        self._late: list[asyncio.Task[Instance]] = []
        create = self.account.create

        async def late(launch_spec: LaunchSpec) -> Instance:
            await asyncio.sleep(self.delay)
            return await create(launch_spec)

        async def unanswered(launch_spec: LaunchSpec) -> Instance:
            if self._late:
                return await create(launch_spec)
            self._late.append(asyncio.get_running_loop().create_task(late(launch_spec)))
            raise OutcomeUnknown("no answer in time")

        self.account.create = unanswered  # type: ignore[method-assign]  # a cloud of its own kind


def test_a_create_that_is_finished_after_the_answer_was_given_up_is_adopted() -> None:
    story = Story(work, cloud_fixture=Slow)
    assert (story.rows("create"), story.billed, story.phase()) == (1, 0, "Succeeded")


def test_a_create_that_is_finished_after_a_crash_is_adopted() -> None:
    slow = Fault(on="create", at=1, what="slow", seconds=Slow.delay)
    story = Story(work, faults=(slow,), fault=InjectedFault("effect", 3, "crash"))
    assert (story.rows("create"), story.billed, story.phase()) == (1, 0, "Succeeded")


def test_a_clock_that_jumps_by_more_than_a_day_ends_nothing() -> None:
    story = Story(work_for_hours, _while_nothing_happens, fault=InjectedFault("call", 1, "clock forward"))
    assert (story.rows("create"), story.rows("end asked"), story.phase()) == (1, 0, "Running")


async def _while_nothing_happens(api: Api) -> None:
    await asyncio.sleep(HOUR)


def test_a_pod_of_a_daemon_set_costs_nothing() -> None:
    story = Story(_run_a_daemon)
    assert (story.rows("create"), story.phase()) == (0, "Running")


async def _run_a_daemon(api: Api) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "1", "controller": True}
    await apply_pod(api, "start=20s,run=60s", metadata={"ownerReferences": [owner]})
