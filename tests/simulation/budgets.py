"""Stories about budgets: pods that share one, end with it, wait for the next period, or cost more than expected."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

import msgspec

from skysail.base.names import Annotation
from skysail.kube.api.resources import JOB, POD
from tests.simulation import runner
from tests.simulation.cloud_scenarios import of_job
from tests.simulation.offload import OPTIONAL, RESOURCES, VOLATILE, CloudFixture, CloudOperator, apply_pod
from tests.simulation.runner import Scenario
from tests.simulation.spending import Administrator

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from skysail.claims.requirements.cloud_requirements import CloudRequirements
    from tests.contract.api_dsl import Api
    from tests.simulation.runner import Outcome
    from tests.simulation.world import World

    Step = Callable[[Api], Awaitable[None]]

HOUR = 3600.0
# The longest that an instance may live: a machine without GPUs costs 0.05 USD until then.
LIFETIME = HOUR / 2
# Before the end of the first day, week and month of the world, which starts on a Thursday.
EVE_OF_DAY = 24 * HOUR - LIFETIME / 2
EVE_OF_WEEK = 4 * 24 * HOUR - LIFETIME / 2
EVE_OF_MONTH = 31 * 24 * HOUR - LIFETIME / 2
_PODS = ("a", "b", "c")


class CappedOperator(CloudOperator):
    """An operator that heeds the cap in a pod's annotation."""

    def _wishes(self, uid: str) -> CloudRequirements:
        pod = self.keeper.cached_pod(uid)
        cap = ((pod.metadata.annotations or {}) if pod else {}).get(Annotation.MAX_COST)
        return msgspec.structs.replace(super()._wishes(uid), max_cost_usd=float(cap) if cap else None)


async def begin_three(api: Api) -> None:
    """More than the budget allows for as long as they like to run."""
    for name in _PODS:
        await apply_pod(api, "start=20s,run=9h", name=name)


async def begin_briefly(api: Api) -> None:
    for name in _PODS:
        await apply_pod(api, "start=20s,run=5m", name=name)


async def begin_dear(api: Api) -> None:
    """The cloud bills more than it offers."""
    await apply_pod(api, "start=20s,run=9h,usd=0.9")


async def begin_without_capacity(api: Api) -> None:
    await apply_pod(api, "start=20s,run=5m,no-capacity=3", name="a")
    await apply_pod(api, "start=20s,run=5m", name="b")


async def begin_capped(api: Api) -> None:
    """Each pod of the Job fails after five minutes, and is replaced by the next one until the cap is used up."""
    (await api.create(JOB, {"metadata": {"name": "job"}})).ok  # noqa: B018 (asserts)
    for name in _PODS:
        owned: dict[str, Any] = await of_job(api)
        owned["annotations"] = {Annotation.MAX_COST: "0.015"}
        await apply_pod(api, "start=1s,run=5m,exit=1", name=name, metadata=owned)


async def wait_for_the_end_of_lifetimes(api: Api) -> None:
    await asyncio.sleep(3 * LIFETIME)


async def wait_for_the_next_period(api: Api) -> None:
    await asyncio.sleep(2 * LIFETIME)


async def delete_all(api: Api) -> None:
    for name in _PODS:
        await api.delete(POD, name)


def _limited(amount: float, period: str = "Day", **spec: Any) -> Callable[[World], Administrator]:
    limits = {"budget": {"amount": amount, "period": period}, "maxDurationSeconds": int(LIFETIME), **spec}
    return functools.partial(Administrator, **limits)


def _scenario(name: str, administrator: Callable[[World], Administrator], *steps: Step, start: float = 0.0) -> Scenario:
    return Scenario(
        name=name,
        resources=RESOURCES,
        residents=(administrator,),
        build=CappedOperator,
        steps=steps,
        outside=CloudFixture,
        volatile=VOLATILE,
        optional=OPTIONAL,
        start=start,
    )


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        # Room for two instances, and for half of the lifetime of a third.
        _scenario("shared until used up", _limited(0.125), begin_three, wait_for_the_end_of_lifetimes, delete_all),
        _scenario(
            "whole lifetimes only", _limited(0.075, onBudgetExhausted="Finish"), begin_briefly,
            wait_for_the_end_of_lifetimes, delete_all,
        ),
        _scenario("dearer than offered", _limited(0.075), begin_dear),
        _scenario("no capacity for a while", _limited(0.075), begin_without_capacity, delete_all),
        _scenario("cap of a Job", _limited(9.0), begin_capped, delete_all),
        _scenario("one place", _limited(9.0, maxInstances=1), begin_briefly, delete_all),
        *(
            _scenario(
                f"the next {period}", _limited(0.075, period), begin_three, wait_for_the_next_period, delete_all,
                start=start,
            )
            for period, start in (("Day", EVE_OF_DAY), ("Week", EVE_OF_WEEK), ("Month", EVE_OF_MONTH))
        ),
    )
}  # fmt: skip


@functools.cache
def reference(name: str) -> Outcome:
    return runner.reference(SCENARIOS[name])


def broken_without_operator(outcome: Outcome) -> list[str]:
    """Return the rules that are broken after the operator has died. What it could not settle breaks none."""
    wrong = [line for line in outcome.bill.wrong if "USD are reserved for claim" not in line]
    return [line for line in wrong if not line.startswith("accounts say")]
