"""Ways in which others lost or doubled paid instances, told again at RunPod's wire: the stand-in's ledger is the judge.

The numbers are those of `test_incidents.py`, which tells all eighteen on the simulated account.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import pytest
from msgspec.structs import replace

from skysail.claims.types import CLOUD_INSTANCE
from skysail.cloud.runpod.stand_in.faults import Fault, Operation
from skysail.kube.api.resources import JOB, NAMESPACE, POD
from tests.contract.api_dsl import Api
from tests.simulation import runner
from tests.simulation.cloud_scenarios import of_job
from tests.simulation.faults import InjectedFault
from tests.simulation.offload import CLUSTER, OPTIONAL, RESOURCES, VOLATILE, apply_pod
from tests.simulation.runner import Scenario
from tests.simulation.runpod import RunPodAdministrator, RunPodFixture, RunPodOperator

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from skysail.cloud.runpod.stand_in.service import StandInOptions

    Step = Callable[[Api], Awaitable[None]]

OPERATIONS: tuple[Operation, ...] = get_args(Operation)
DEFAULTS = RunPodFixture.options


class Story:
    """What came of some steps. `later` are scripts of faults by the seconds after which they begin.

    `service` are other fields of the fixture, such as `vanish_after`.
    """

    def __init__(
        self,
        *steps: Step,
        faults: tuple[Fault, ...] = (),
        later: tuple[tuple[float, tuple[Fault, ...]], ...] = (),
        options: StandInOptions = DEFAULTS,
        fault: InjectedFault | None = None,
        down: frozenset[int] = frozenset(),
        **service: float,
    ) -> None:
        fields = {"script": faults, "later": later, "options": options, **service}
        kind = type("Incident", (RunPodFixture,), fields)
        opened: list[RunPodFixture] = []

        def outside() -> RunPodFixture:
            opened.append(kind())
            return opened[0]

        scenario = Scenario(
            name="incident",
            resources=RESOURCES,
            residents=(RunPodAdministrator,),
            build=RunPodOperator,
            steps=steps,
            down=down,
            outside=outside,
            volatile=VOLATILE,
            optional=OPTIONAL,
        )
        self.outcome = runner.play(scenario, fault)
        self.ledger = opened[0].final_rows
        assert self.outcome.bill.wrong == []
        assert self.outcome.errors == []
        assert fault is None or self.outcome.struck

    def rows(self, verb: str) -> int:
        """Return how often this happened to pods of ours."""
        return sum(1 for row in self.ledger if row.verb == verb and row.cluster == CLUSTER)

    @property
    def sums(self) -> tuple[int, int]:
        """Return the number of pods that were created, and of those that are still billed."""
        return self.rows("create"), self.rows("create") - self.rows("ended")

    def phase(self, pod: str = "train") -> str | None:
        return self.status(pod).get("phase")

    def status(self, pod: str = "train") -> dict[str, Any]:
        """Return the last status of the pod, empty if the pod is gone."""
        found: dict[str, Any] = self.outcome.end.get(f"Pod {pod}", {}).get("status", {})
        return found


async def work(api: Api) -> None:
    await apply_pod(api, "run=5m")


async def work_for_hours(api: Api) -> None:
    await apply_pod(api, "run=9h")
    await _until_running(api)


async def delete(api: Api) -> None:
    (await api.delete(POD, "train")).ok  # noqa: B018 (asserts)


async def _until_running(api: Api) -> None:
    uid = (await api.get(POD, "train")).ok["metadata"]["uid"]
    await api.until(
        CLOUD_INSTANCE.resource,
        f"{uid}-0",
        lambda claim: bool(claim) and claim.get("status", {}).get("state") == "Running",
    )


def test_04_a_network_that_is_off_ends_nothing():
    down = tuple(Fault(what="lost", on=operation) for operation in OPERATIONS)
    story = Story(work_for_hours, later=((60.0, down), (1800.0, ())))
    assert (story.sums, story.rows("end asked"), story.phase()) == ((1, 1), 0, "Running")


def test_05_an_empty_list_for_ever_launches_nothing_and_ends_nothing():
    story = Story(work_for_hours, later=((60.0, (Fault(what="empty", on="list"),)),))
    assert (story.sums, story.rows("end asked"), story.phase()) == ((1, 1), 0, "Running")


@pytest.mark.parametrize("lag", [0.0, 45.0, 110.0])
def test_06_a_create_that_timed_out_and_shows_up_late_is_adopted(lag):
    lost = Fault(what="timeout-done", on="create", at=1, seconds=1000.0)
    story = Story(work, delete, faults=(lost,), options=replace(DEFAULTS, lag=lag))
    assert (story.sums, story.phase()) == ((1, 0), None)


@pytest.mark.parametrize("crash", [None, InjectedFault("effect", 12, "crash")], ids=["same process", "restarted"])
def test_08_pods_that_are_shown_without_their_marks_are_neither_doubled_nor_forgotten(crash):
    unmarked = (Fault(what="unmarked", on="list"), Fault(what="unmarked", on="get"))
    story = Story(work_for_hours, delete, later=((300.0, unmarked),), fault=crash)
    assert (story.sums, story.phase()) == ((1, 0), None)


def test_08_a_new_process_that_sees_no_marks_at_all_ends_the_pod_that_its_claim_names():
    unmarked = (Fault(what="unmarked", on="list"), Fault(what="unmarked", on="get"))
    story = Story(work_for_hours, delete, later=((100.0, unmarked),), down=frozenset({1}))
    assert (story.sums, story.phase()) == ((1, 0), None)


def test_09_a_500_after_the_creation_is_no_failure():
    story = Story(work, delete, faults=(Fault(what="500-done", on="create", at=1),))
    assert (story.sums, story.phase()) == ((1, 0), None)


@pytest.mark.parametrize("hidden", [5.0, 50.0, 100.0])
def test_10_a_404_soon_after_the_creation_is_no_proof_of_an_end(hidden):
    story = Story(work_for_hours, delete, options=replace(DEFAULTS, hidden=hidden))
    assert (story.sums, story.phase()) == ((1, 0), None)


@pytest.mark.parametrize("seconds", [30.0, 58.0, 80.0])
@pytest.mark.parametrize("crash", [None, InjectedFault("effect", 5, "crash")], ids=["same process", "restarted"])
def test_12_a_create_that_takes_long_is_not_repeated_by_the_clock(seconds, crash):
    """The client gives up after a minute, and the service creates the pod nevertheless."""
    slow = Fault(what="slow-done", on="create", at=1, seconds=seconds)
    story = Story(work, delete, faults=(slow,), fault=crash)
    assert (story.sums, story.phase()) == ((1, 0), None)


def test_13_names_that_are_the_same_when_glued_together_are_two_pods():
    story = Story(_in("a", "b-c"), _in("a-b", "c"))
    assert story.sums == (2, 0)
    assert (story.phase("a/b-c"), story.phase("a-b/c")) == ("Succeeded", "Succeeded")
    names = {row.claim for row in story.ledger if row.verb == "create" and row.cluster == CLUSTER}
    assert len(names) == 2


def _in(namespace: str, pod: str) -> Step:
    async def step(api: Api) -> None:
        (await api.create(NAMESPACE, {"metadata": {"name": namespace}})).ok  # noqa: B018 (asserts)
        await apply_pod(Api(api.transport, namespace, api.compact), "run=60s", name=pod)

    return step


async def _work_for_a_job(api: Api) -> None:
    """As the Job controller does: the next pod comes after the first one has failed."""
    (await api.create(JOB, {"metadata": {"name": "job"}})).ok  # noqa: B018 (asserts)
    owned = await of_job(api)
    await apply_pod(api, "run=9h", metadata=owned)
    await api.until(POD, "train", lambda pod: bool(pod) and pod.get("status", {}).get("phase") == "Failed")
    await apply_pod(api, "run=30s", name="next", metadata=owned)


def test_pod_whose_instance_vanished_is_lost_and_says_that_it_was_disrupted():
    story = Story(work_for_hours, vanish_after=90.0)
    assert story.sums == (1, 0)
    _check_lost(story.status())


def test_pod_of_a_job_whose_instance_vanished_is_lost_and_the_next_one_succeeds():
    story = Story(_work_for_a_job, vanish_after=90.0)
    assert (story.sums, story.phase("next")) == ((2, 0), "Succeeded")
    _check_lost(story.status())


def test_pod_of_a_job_whose_instance_was_stopped_has_failed_and_the_next_one_succeeds():
    """A stop may also be an action of the user, so it costs the Job a retry."""
    story = Story(_work_for_a_job, stops_after=90.0)
    assert (story.sums, story.phase("next")) == ((2, 0), "Succeeded")
    status = story.status()
    assert (status["phase"], _terminated(status)) == ("Failed", ("ProviderStopped", 137))
    assert _disruptions(status) == []


def _check_lost(status: dict[str, Any]) -> None:
    assert (status["phase"], status["reason"], _terminated(status)) == ("Failed", "Lost", ("Lost", 137))
    assert _disruptions(status) == [("True", "TerminationByKubelet")]


def _terminated(status: dict[str, Any]) -> tuple[str, int]:
    (container,) = status["containerStatuses"]
    state = container["state"]["terminated"]
    return state["reason"], state["exitCode"]


def _disruptions(status: dict[str, Any]) -> list[tuple[str, str]]:
    return [(row["status"], row["reason"]) for row in status["conditions"] if row["type"] == "DisruptionTarget"]
