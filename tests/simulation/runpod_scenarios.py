"""What befalls a pod at RunPod: stories that are played at the service's wire, each with a crash after every effect."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from skysail.base.names import Reason
from skysail.cloud.runpod.stand_in.faults import Fault
from tests.simulation import cloud_scenarios as stories
from tests.simulation import runner
from tests.simulation.offload import OPTIONAL, RESOURCES, VOLATILE, apply_pod, last_word
from tests.simulation.runner import Scenario
from tests.simulation.runpod import RunPodAdministrator, RunPodFixture, RunPodOperator

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.contract.api_dsl import Api
    from tests.simulation.runner import Outcome
    from tests.simulation.watches import Change

    Step = Callable[[Api], Awaitable[None]]


_IDS = frozenset({"account", "runpod.io/pod-id"})
# RunPod may hide a pod for two minutes. Then several lists and a lookup have to agree, and a crash comes before.
_SETTLING_SECONDS = 270.0


class SoldOutTwice(RunPodFixture):
    script = tuple(Fault(what="no-capacity", on="create", at=at) for at in (1, 2))


class DearOnce(RunPodFixture):
    script = (Fault(what="dear", on="create", at=1),)


class Stops(RunPodFixture):
    """A service that stops pods, for example for lack of balance. A stopped pod is billed until it is deleted."""

    stops_after = 90.0


class TakesAway(RunPodFixture):
    vanish_after = 90.0


class Lags(RunPodFixture):
    """A service that shows a new pod late, and answers 404 for it until then."""

    options = replace(RunPodFixture.options, lag=45.0, hidden=30.0)


async def succeed_with_a_gpu(api: Api) -> None:
    await apply_pod(api, "run=60s", gpus=1)


async def fail(api: Api) -> None:
    await apply_pod(api, "run=60s,exit=37")


async def work_for_hours(api: Api) -> None:
    await apply_pod(api, "run=9h")


def _last_word(change: Change) -> dict[str, Any]:
    """RunPod forgets a deleted pod at once: after a crash, nobody can know how a program ended that had to go."""
    told = last_word(change)
    ends = [
        row["reason"] for row in change.after.get("status", {}).get("conditions", ()) if row["type"] == "Terminated"
    ]
    if not {Reason.DELETED, Reason.OWNER_DELETED} & set(ends):
        return told
    return {key: value for key, value in told.items() if key not in {"exit", "finishTime", "conditions"}}


def _scenario(
    name: str,
    *steps: Step,
    at: type[RunPodFixture] = RunPodFixture,
    optional: frozenset[str] = frozenset(),
    **fields: bool,
) -> Scenario:
    is_race = fields.get("is_race", False)
    return Scenario(
        name=name,
        resources=RESOURCES,
        residents=(RunPodAdministrator,),
        build=RunPodOperator,
        steps=steps,
        is_race=is_race,
        down=frozenset({1}) if fields.get("is_down") else frozenset(),
        outside=at,
        volatile=VOLATILE | _IDS,
        settling=_SETTLING_SECONDS,
        optional=optional | OPTIONAL,
        last_word=(lambda _: {}) if is_race else _last_word,
    )


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        _scenario("launch to success", stories.succeed, stories.delete),
        _scenario("exit code", fail, stories.delete),
        _scenario("delete while starting", stories.begin_and_delete_while_starting, is_race=True),
        _scenario("delete while running", stories.begin_and_delete_while_running),
        _scenario("force delete", stories.begin_and_force_delete),
        _scenario("re-create under one name", stories.run_for_long, stories.replace),
        _scenario("index of a Job replaced", stories.run_an_index, stories.replace_the_index),
        _scenario("new pod is hidden", stories.succeed, stories.delete, at=Lags),
        _scenario("stopped by the service", work_for_hours, stories.delete, at=Stops),
        _scenario("taken away by the service", work_for_hours, stories.delete, at=TakesAway),
        _scenario(
            "third candidate", succeed_with_a_gpu, stories.delete, at=SoldOutTwice, optional=stories.CHOICE | {"region"}
        ),
        _scenario(
            "price above the cap", succeed_with_a_gpu, stories.delete, at=DearOnce, optional=stories.CHOICE | {"region"}
        ),
        _scenario("namespace deleted while down", stories.run_for_long, stories.end_the_namespace, is_down=True),
    )
}


# Scenarios in which it does not matter which offer is taken in the end, because the trouble refuses candidates.
_ANY_OFFER = {
    name: replace(scenario, optional=scenario.optional | stories.CHOICE | {"region"})
    for name, scenario in SCENARIOS.items()
}


def disturbed(name: str, trouble: str) -> tuple[Scenario, Outcome]:
    """Return a scenario and its reference, to compare runs with this trouble with."""
    if trouble != "no capacity":
        return SCENARIOS[name], reference(name)
    return _ANY_OFFER[name], runner.reference(_ANY_OFFER[name])


@functools.cache
def reference(name: str) -> Outcome:
    return runner.reference(SCENARIOS[name])
