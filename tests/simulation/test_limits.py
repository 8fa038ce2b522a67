"""What keeps a mistake that nobody foresaw from costing much: the brake, and what counts as a proof."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skysail.claims.types import CLOUD_INSTANCE
from skysail.cloud.simulated.faults import Fault
from skysail.kube.api.resources import JOB, POD
from tests.simulation.cloud_scenarios import of_job
from tests.simulation.faults import InjectedFault
from tests.simulation.offload import STRANGER, CloudFixture, apply_pod
from tests.simulation.test_incidents import Story, after, delete

if TYPE_CHECKING:
    from tests.contract.api_dsl import Api

TEN_MINUTES = 600.0


def test_a_pod_that_ends_at_once_is_launched_five_times_in_ten_minutes() -> None:
    story = Story(_fail_again_and_again)
    launches = [row.at for row in story.markets[0].ledger.rows if row.verb == "create" and row.claim != "theirs"]
    assert sum(1 for at in launches if at < launches[0] + TEN_MINUTES) == 5
    assert len(launches) > 5, "it goes on later"


def test_a_restart_does_not_let_go_of_the_brake() -> None:
    """The process after a crash finds the launches before it in the claims, which stay as long as their pods."""
    story = Story(_fail_at_one_index, fault=InjectedFault("call", 5, "crash"))
    launches = [row.at for row in story.markets[0].ledger.rows if row.verb == "create" and row.claim != "theirs"]
    assert sum(1 for at in launches if at < launches[0] + TEN_MINUTES) == 5
    assert len(launches) > 5, "it goes on later"


async def _fail_again_and_again(api: Api) -> None:
    await apply_pod(api, "start=1s,run=1s,exit=1", restartPolicy="Always")
    uid = (await api.get(POD, "train")).ok["metadata"]["uid"]
    await api.until(CLOUD_INSTANCE.resource, f"{uid}-5", lambda claim: bool(claim) and _is_launched(claim))
    await delete(api)


async def _fail_at_one_index(api: Api) -> None:
    """As a Job does that keeps the pods which failed."""
    (await api.create(JOB, {"metadata": {"name": "job"}})).ok  # noqa: B018 (asserts)
    for attempt in range(6):
        name = f"train-{attempt}"
        await apply_pod(api, "start=1s,run=1s,exit=1", name=name, metadata=await of_job(api, index="0"))
        await api.until(POD, name, lambda pod: bool(pod) and pod.get("status", {}).get("phase") == "Failed")


def _is_launched(claim: dict[str, dict[str, object]]) -> bool:
    return bool(claim.get("status", {}).get("instanceId"))


class Crowded(CloudFixture):
    """So many strangers that a page of the listing does not show what is ours."""

    def __init__(self, *script: Fault) -> None:
        super().__init__(*script)
        self.account.inject_orphan(claim="also theirs", cluster=STRANGER)


def test_listings_in_part_are_no_proof_of_absence() -> None:
    partial = Fault(on="list", what="partial", since=after(5.0), until=after(TEN_MINUTES))
    story = Story(
        _work_for_long, faults=(partial,), fault=InjectedFault("call", 1, "lost, done"), cloud_fixture=Crowded
    )
    assert (story.rows("create"), story.billed, story.phase()) == (1, 0, "Succeeded")


async def _work_for_long(api: Api) -> None:
    await apply_pod(api, "start=20s,run=20m")
