"""The sample controller under every trouble, in every scenario."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest

from skysail.kube.api.resources import CONFIG_MAP, NAMESPACE
from tests.simulation import runner
from tests.simulation.fleet import BERTH, FLEET, Admiral
from tests.simulation.runner import Scenario

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.contract.api_dsl import Api
    from tests.simulation.coverage_report import Checker
    from tests.simulation.faults import On
    from tests.simulation.runner import Outcome


async def order(api: Api) -> None:
    (await api.create(FLEET, {"metadata": {"name": "a"}, "spec": {"size": 2, "flag": "blue"}})).ok  # noqa: B018 (asserts)


async def enlarge(api: Api) -> None:
    (await api.merge(FLEET, "a", {"spec": {"size": 4}})).ok  # noqa: B018 (asserts)


async def shrink(api: Api) -> None:
    (await api.merge(FLEET, "a", {"spec": {"size": 1}})).ok  # noqa: B018 (asserts)


async def repaint(api: Api) -> None:
    (await api.merge(FLEET, "a", {"spec": {"flag": "red"}})).ok  # noqa: B018 (asserts)


async def disband(api: Api) -> None:
    (await api.delete(FLEET, "a")).ok  # noqa: B018 (asserts)


async def disband_at_the_first_ship(api: Api) -> None:
    await order(api)
    await api.until(CONFIG_MAP, "a-0", lambda ship: ship is not None)
    await disband(api)


async def sink_a_ship(api: Api) -> None:
    (await api.delete(CONFIG_MAP, "a-1")).ok  # noqa: B018 (asserts)


async def end_the_namespace(api: Api) -> None:
    (await api.delete(NAMESPACE, api.namespace)).ok  # noqa: B018 (asserts)


def _scenario(name: str, *steps: Callable[[Api], Awaitable[None]], is_race: bool = False) -> Scenario:
    return Scenario(name=name, resources=(FLEET, BERTH), build=Admiral, steps=steps, is_race=is_race)


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        _scenario("create", order),
        _scenario("scale up", order, enlarge),
        _scenario("scale down", order, shrink),
        _scenario("edit", order, repaint),
        _scenario("delete", order, disband),
        _scenario("delete while creating", disband_at_the_first_ship, is_race=True),
        _scenario("a stranger deletes a child", order, sink_a_ship),
        _scenario("the namespace ends", order, end_the_namespace),
    )
}


ENDS = {
    "create": ["ConfigMap a-0", "ConfigMap a-1", "Fleet a", "Berth stage-a"],
    "scale up": ["ConfigMap a-0", "ConfigMap a-1", "ConfigMap a-2", "ConfigMap a-3", "Fleet a", "Berth stage-a"],
    "scale down": ["ConfigMap a-0", "Fleet a", "Berth stage-a"],
    "edit": ["ConfigMap a-0", "ConfigMap a-1", "Fleet a", "Berth stage-a"],
    "delete": [],
    "delete while creating": [],
    "a stranger deletes a child": ["ConfigMap a-0", "ConfigMap a-1", "Fleet a", "Berth stage-a"],
    "the namespace ends": [],
}


@functools.cache
def _expected(name: str) -> Outcome:
    return runner.reference(SCENARIOS[name])


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_fleet_is_as_ordered_when_nothing_goes_wrong(name: str) -> None:
    expected = _expected(name)
    assert not expected.errors
    assert expected == runner.reference(SCENARIOS[name])
    assert [line for line in expected.end if line.startswith(("Fleet", "Berth", "ConfigMap"))] == ENDS[name]


@pytest.mark.parametrize(("on", "what"), runner.KINDS, ids=[f"{on}: {what}" for on, what in runner.KINDS])
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_fleet_comes_to_the_same_end_whatever_goes_wrong(name: str, on: On, what: str, court: Checker) -> None:
    expected = _expected(name)
    if what == "crash":
        court.knows(expected)
    assert court.violations(SCENARIOS[name], expected, runner.faults_for(expected, on, what)) == []
