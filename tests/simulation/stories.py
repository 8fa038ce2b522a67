"""What befalls a pod on a node that stands for a cloud: nine stories, each of them played with every trouble."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from skysail.claims.types import CLOUD_INSTANCE
from skysail.kube.resources import NAMESPACE, POD
from tests.simulation import runner
from tests.simulation.offload import VOLATILE, Harbour, Market, apply_pod
from tests.simulation.runner import Scenario

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.contract.speech import Api
    from tests.simulation.runner import Outcome

    Step = Callable[[Api], Awaitable[None]]


async def succeed(api: Api) -> None:
    await apply_pod(api, "start=20s,run=60s")


async def fail(api: Api) -> None:
    await apply_pod(api, "start=20s,run=60s,exit=37")


async def begin(api: Api) -> None:
    await apply_pod(api, "start=30s,run=2h")


async def delete(api: Api) -> None:
    (await api.delete(POD, "train")).ok  # noqa: B018 (asserts)


async def begin_and_delete_while_starting(api: Api) -> None:
    await begin(api)
    await _until_claimed(api, {"Launching", "Unknown", "Starting", "Running"})
    await delete(api)


async def begin_and_delete_while_running(api: Api) -> None:
    await begin(api)
    await _until_claimed(api, {"Running"})
    await delete(api)


async def begin_and_force_delete(api: Api) -> None:
    await begin(api)
    await _until_claimed(api, {"Running"})
    (await api.delete(POD, "train", {"gracePeriodSeconds": 0})).ok  # noqa: B018 (asserts)


async def recreate(api: Api) -> None:
    await begin_and_force_delete(api)
    await run_for_long(api)


async def replace(api: Api) -> None:
    """As soon as the old one has gone, whoever still believes in it."""
    await delete(api)
    await api.until_gone(POD, "train")
    await succeed(api)


async def be_preempted(api: Api) -> None:
    await apply_pod(api, "start=20s,run=2h,preempt=60s")


async def find_no_capacity(api: Api) -> None:
    await apply_pod(api, "start=20s,run=60s,no-capacity=2")


async def run_for_long(api: Api) -> None:
    await begin(api)
    await _until_claimed(api, {"Running"})


async def end_the_namespace(api: Api) -> None:
    (await api.delete(NAMESPACE, api.namespace)).ok  # noqa: B018 (asserts)


async def _until_claimed(api: Api, states: set[str]) -> None:
    uid = (await api.get(POD, "train")).ok["metadata"]["uid"]
    await api.until(
        CLOUD_INSTANCE.resource,
        f"{uid}-0",
        lambda claim: bool(claim) and claim.get("status", {}).get("state") in states,
    )


def _scenario(name: str, *steps: Step, is_race: bool = False, down: frozenset[int] = frozenset()) -> Scenario:
    return Scenario(
        name=name,
        resources=(CLOUD_INSTANCE.resource,),
        build=Harbour,
        steps=steps,
        is_race=is_race,
        down=down,
        outside=Market,
        volatile=VOLATILE,
    )


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        _scenario("launch to success", succeed, delete),
        _scenario("launch to failure", fail, delete),
        _scenario("delete while starting", begin_and_delete_while_starting, is_race=True),
        _scenario("delete while running", begin_and_delete_while_running),
        _scenario("force delete", begin_and_force_delete),
        _scenario("re-create under one name", recreate, replace),
        _scenario("preempted", be_preempted, delete),
        _scenario("no capacity, then retry", find_no_capacity, delete),
        _scenario("namespace deleted while down", run_for_long, end_the_namespace, down=frozenset({1})),
    )
}


@functools.cache
def reference(name: str) -> Outcome:
    return runner.reference(SCENARIOS[name])
