"""Eighteen ways in which others lost or doubled paid instances, each told again with us in the middle.

The ledger of the simulated account is the judge: what was created, what was ended, and what is still paid for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from skysail.claims.types import CLOUD_INSTANCE
from skysail.cloud.account import Inventory
from skysail.cloud.simulated.faults import Fault
from skysail.kube.api.resources import NAMESPACE, POD
from tests.contract.api_dsl import Api
from tests.simulation import runner
from tests.simulation.faults import InjectedFault
from tests.simulation.offload import CLUSTER, OPTIONAL, RESOURCES, VOLATILE, CloudFixture, CloudOperator, apply_pod
from tests.simulation.runner import Scenario
from tests.simulation.spending import Administrator
from tests.simulation.world import EPOCH

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.simulation.runner import Outcome

    Step = Callable[[Api], Awaitable[None]]

HOUR = 3600.0


class Story:
    """What came of some steps, with these faults of the cloud and this trouble of ours."""

    def __init__(
        self,
        *steps: Step,
        faults: tuple[Fault, ...] = (),
        fault: InjectedFault | None = None,
        down: frozenset[int] = frozenset(),
        cloud_fixture: type[CloudFixture] = CloudFixture,
        at_once: int = 1,
    ) -> None:
        self.markets: list[CloudFixture] = []
        scenario = Scenario(
            name="incident",
            resources=RESOURCES,
            residents=(Administrator,),
            build=CloudOperator,
            steps=steps,
            down=down,
            outside=lambda: self._open(cloud_fixture, faults),
            volatile=VOLATILE,
            optional=OPTIONAL,
        )
        self.outcome: Outcome = runner.play(scenario, fault)
        assert self.outcome.bill.wrong == _said_of(at_once)
        assert self.outcome.errors == []
        assert fault is None or self.outcome.struck

    def _open(self, cloud_fixture: type[CloudFixture], faults: tuple[Fault, ...]) -> CloudFixture:
        self.markets.append(cloud_fixture(*faults))
        return self.markets[-1]

    def rows(self, verb: str) -> int:
        """How often this happened to instances of ours."""
        return sum(1 for row in self.markets[0].ledger.rows if row.verb == verb and row.cluster == CLUSTER)

    @property
    def billed(self) -> int:
        """Instances of ours that are still paid for."""
        return self.rows("create") - self.rows("ended")

    def phase(self, pod: str = "train") -> str | None:
        return self.outcome.end.get(f"Pod {pod}", {}).get("status", {}).get("phase")


def _said_of(at_once: int) -> list[str]:
    """By the judge, where the cloud itself made more than one."""
    return [f"{at_once} instances were billed at once for one claim"] if at_once > 1 else []


async def work(api: Api) -> None:
    await apply_pod(api, "start=20s,run=5m")


async def work_for_hours(api: Api) -> None:
    await apply_pod(api, "start=20s,run=9h")
    await until_state(api, "Running")


async def start_slowly(api: Api) -> None:
    await apply_pod(api, "start=10m,run=9h")
    await until_state(api, "Starting")


async def delete(api: Api) -> None:
    (await api.delete(POD, "train")).ok  # noqa: B018 (asserts)


async def force_delete(api: Api) -> None:
    (await api.delete(POD, "train", {"gracePeriodSeconds": 0})).ok  # noqa: B018 (asserts)


async def delete_while_called(api: Api) -> None:
    await apply_pod(api, "start=20s,run=9h")
    await until_state(api, "Launching")
    await delete(api)


async def until_state(api: Api, state: str) -> None:
    uid = (await api.get(POD, "train")).ok["metadata"]["uid"]
    await api.until(
        CLOUD_INSTANCE.resource, f"{uid}-0", lambda claim: bool(claim) and claim.get("status", {}).get("state") == state
    )


def test_01_a_crash_between_the_call_and_its_record_launches_nothing_twice():
    story = Story(work, fault=InjectedFault("call", 1, "crash"))
    assert (story.rows("create"), story.billed, story.phase()) == (1, 0, "Succeeded")


def test_02_an_error_although_the_instance_exists_is_no_reason_for_another():
    story = Story(work, faults=(Fault(on="create", at=1, what="lost-done"),))
    assert (story.rows("create"), story.billed, story.phase()) == (1, 0, "Succeeded")


def test_03_nobody_gives_up_ending_while_the_cloud_is_down():
    story = Story(work_for_hours, delete, faults=(Fault(on="end", what="500", until=after(HOUR / 2)),))
    assert (story.rows("create"), story.billed, story.phase()) == (1, 0, None)


def test_04_a_network_that_is_off_ends_nothing_and_tells_no_end():
    down = Fault(what="lost", since=after(60.0), until=after(1800.0))
    story = Story(work_for_hours, faults=(down,))
    assert (story.rows("create"), story.rows("end asked"), story.phase()) == (1, 0, "Running")


def test_05_a_listing_that_is_empty_for_ever_launches_nothing_and_ends_nothing():
    story = Story(work_for_hours, faults=(Fault(on="list", what="empty", since=after(60.0)),))
    assert (story.rows("create"), story.rows("end asked"), story.phase()) == (1, 0, "Running")


def test_06_a_creation_that_timed_out_and_shows_up_late_is_adopted():
    lost = Fault(on="create", at=1, what="lost-done")
    story = Story(_work_that_is_listed_late, faults=(lost,))
    assert (story.rows("create"), story.billed, story.phase()) == (1, 0, "Succeeded")


async def _work_that_is_listed_late(api: Api) -> None:
    await apply_pod(api, "start=20s,run=5m,lag=45s")


def test_07_what_is_deleted_while_it_is_being_launched_leaves_nothing():
    story = Story(delete_while_called, faults=(Fault(on="create", at=1, what="slow", seconds=300.0),))
    assert (story.billed, story.phase()) == (0, None)


class Forgetful(CloudFixture):
    """A cloud that lists instances without the marks that we gave them."""

    def __init__(self, *script: Fault) -> None:
        super().__init__(*script)
        listed = self.account.list

        async def unmarked() -> Inventory:
            instances = (await listed()).instances
            return Inventory(tuple(msgspec.structs.replace(each, claim="", cluster="") for each in instances))

        self.account.list = unmarked  # type: ignore[method-assign]  # the cloud changed its answers


def test_08_instances_that_the_listing_no_longer_names_are_neither_doubled_nor_forgotten():
    story = Story(work_for_hours, delete, cloud_fixture=Forgetful)
    assert (story.rows("create"), story.billed, story.phase()) == (1, 0, None)


def test_09_a_500_after_the_creation_is_no_failure():
    story = Story(work, faults=(Fault(on="create", at=1, what="500-done"),))
    assert (story.rows("create"), story.billed, story.phase()) == (1, 0, "Succeeded")


def test_10_a_404_soon_after_the_creation_is_no_proof_of_an_end():
    story = Story(_work_that_is_denied, delete)
    assert (story.rows("create"), story.billed, story.phase()) == (1, 0, None)


async def _work_that_is_denied(api: Api) -> None:
    await apply_pod(api, "start=5s,run=9h,hidden=50s")
    await until_state(api, "Starting")


def test_11_an_instance_that_never_gets_healthy_is_still_known_and_ended():
    story = Story(start_slowly, delete)
    assert (story.rows("create"), story.billed, story.phase()) == (1, 0, None)


def test_12_a_call_that_takes_long_is_not_repeated_by_the_clock():
    story = Story(work, faults=(Fault(on="create", at=1, what="slow", seconds=1200.0),))
    assert (story.rows("create"), story.billed, story.phase()) == (1, 0, "Succeeded")


def test_13_names_that_are_the_same_when_glued_together_are_two_pods():
    story = Story(_in("a", "b-c"), _in("a-b", "c"))
    assert (story.rows("create"), story.billed) == (2, 0)
    assert (story.phase("a/b-c"), story.phase("a-b/c")) == ("Succeeded", "Succeeded")


def test_14_a_stop_that_failed_keeps_the_finalizer_until_one_succeeds():
    story = Story(work_for_hours, delete, faults=tuple(Fault(on="end", at=at, what="500") for at in (1, 2, 3)))
    assert (story.rows("ended"), story.billed, story.phase()) == (1, 0, None)


def test_15_what_takes_the_place_of_another_does_not_leave_it_running():
    story = Story(work_for_hours, _replace)
    assert (story.rows("create"), story.rows("ended"), story.phase()) == (2, 2, "Succeeded")


async def _replace(api: Api) -> None:
    await force_delete(api)
    await work(api)


def test_16_two_namespaces_with_one_name_share_nothing():
    story = Story(_in("a", "train", "start=1s,run=9h"), _in("b", "train", "start=1s,run=9h"), _end_of("a", "train"))
    assert (story.rows("create"), story.rows("ended")) == (2, 1)


def test_17_a_cloud_that_cannot_be_asked_launches_nothing_until_it_can():
    story = Story(work, faults=(Fault(on="list", what="500", until=after(1200.0)),))
    assert (story.rows("create"), story.billed, story.phase()) == (1, 0, "Succeeded")
    [begun] = [row.at for row in story.markets[0].ledger.rows if row.verb == "create" and row.cluster == CLUSTER]
    assert begun >= after(1200.0)


def test_18_what_went_while_nobody_looked_is_ended_however_often_it_takes():
    ends = tuple(Fault(on="end", at=at, what="lost") for at in (1, 2))
    story = Story(work_for_hours, force_delete, faults=ends, down=frozenset({1}))
    assert (story.rows("ended"), story.billed, story.phase()) == (1, 0, None)


def _in(namespace: str, pod: str, simulate: str = "start=1s,run=60s") -> Step:
    async def step(api: Api) -> None:
        (await api.create(NAMESPACE, {"metadata": {"name": namespace}})).ok  # noqa: B018 (asserts)
        await apply_pod(Api(api.transport, namespace, api.compact), simulate, name=pod)

    return step


def _end_of(namespace: str, pod: str) -> Step:
    async def step(api: Api) -> None:
        (await Api(api.transport, namespace, api.compact).delete(POD, pod)).ok  # noqa: B018 (asserts)

    return step


def after(seconds: float) -> float:
    return EPOCH.timestamp() + seconds
