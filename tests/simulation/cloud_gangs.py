"""A gang of two pods on a node that stands for a cloud, and what befalls it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from skysail.claims.gangs import GangRef
from skysail.claims.types import CLOUD_INSTANCE
from skysail.kube.api.resources import JOB, POD
from tests.simulation import runner
from tests.simulation.cloud_scenarios import of_job
from tests.simulation.offload import OPTIONAL, RESOURCES, VOLATILE, CloudFixture, CloudOperator, apply_pod
from tests.simulation.runner import Scenario
from tests.simulation.spending import Administrator

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.contract.api_dsl import Api
    from tests.simulation.operator_process import Process
    from tests.simulation.runner import Outcome

    Step = Callable[[Api], Awaitable[None]]

_INDEX = "batch.kubernetes.io/job-completion-index"
_SIZE = 2


class GangOperator(CloudOperator):
    """Knows the pods of a Job as the ranks of a gang."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.keeper._provider.gang = self._gang  # type: ignore[attr-defined]

    async def _gang(self, uid: str) -> GangRef | None:
        pod = self.keeper.cached_pod(uid)
        owner = pod.metadata.controller if pod is not None else None
        if pod is None or owner is None:
            return None
        rank = int((pod.metadata.annotations or {})[_INDEX])
        return GangRef(
            api_version=owner.api_version,
            kind=owner.kind,
            name=owner.name,
            uid=owner.uid,
            size=_SIZE,
            rank=rank,
            ends_together=True,
        )


def _begin(simulate: str, *ranks: int) -> Step:
    async def step(api: Api) -> None:
        (await api.create(JOB, {"metadata": {"name": "job"}})).ok  # noqa: B018 (asserts)
        await _come(api, simulate, *ranks)

    return step


async def _come(api: Api, simulate: str, *ranks: int) -> None:
    for rank in ranks:
        owned = await of_job(api, index=str(rank))
        await apply_pod(api, simulate, name=f"rank-{rank}", metadata=owned)


async def come_late(api: Api) -> None:
    await _come(api, "start=20s,run=60s", 1)


async def delete_a_rank(api: Api) -> None:
    uid = (await api.get(JOB, "job")).ok["metadata"]["uid"]
    states = {"Running", "Terminated"}
    await api.until(
        CLOUD_INSTANCE.resource,
        f"{uid}-0",
        lambda claim: bool(claim) and claim.get("status", {}).get("state") in states,
    )
    (await api.delete(POD, "rank-1")).ok  # noqa: B018 (asserts)


async def end(api: Api) -> None:
    """Delete the Job, then its pods, as the garbage collector does."""
    for resource, name in ((JOB, "job"), (POD, "rank-0"), (POD, "rank-1")):
        await api.delete(resource, name)


def _scenario(name: str, *steps: Step) -> Scenario:
    return Scenario(
        name=name,
        resources=RESOURCES,
        residents=(Administrator,),
        build=GangOperator,
        steps=steps,
        outside=CloudFixture,
        volatile=VOLATILE,
        optional=OPTIONAL,
        # Which rank ended first is a matter of milliseconds.
        last_word=lambda _: {},
    )


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        _scenario("gang to success", _begin("start=20s,run=60s", 0, 1), end),
        _scenario("rank comes late", _begin("start=20s,run=60s", 0), come_late, end),
        _scenario("rank fails", _begin("start=20s,run=60s,exit=37,fail-rank=1", 0, 1), end),
        _scenario("rank deleted", _begin("start=20s,run=2h", 0, 1), delete_a_rank, end),
    )
}


@functools.cache
def reference(name: str) -> Outcome:
    return runner.reference(SCENARIOS[name])
