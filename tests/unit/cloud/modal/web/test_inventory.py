"""Costs of web Apps, which are known only as far as this process has counted containers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from skysail.cloud.modal.web.inventory import DeployedApp, WebInventory
from skysail.cloud.modal.web.tags import WebTags, instance_id

CLUSTER = "0f6d1f0e-9d54-4d2d-8a3a-222222222222"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def app(*, count: int, claim: str = "c1", earlier: tuple[str, ...] = ()) -> DeployedApp:
    async def stats() -> Any:
        return SimpleNamespace(num_total_runners=count)

    return DeployedApp(
        handle=SimpleNamespace(app_id="ap-1", name="ow-x"),  # type: ignore[arg-type]
        tags=WebTags(claim=claim, cluster=CLUSTER, created=1000.0, usd_per_hour=3.6, max_containers=4, earlier=earlier),
        written_tags={},
        function=SimpleNamespace(get_current_stats=SimpleNamespace(aio=stats)),  # type: ignore[arg-type]
        url="https://x.modal.run",
    )


def inventory(clock: Clock) -> WebInventory:
    return WebInventory(None, CLUSTER, now=clock)  # type: ignore[arg-type]


def usd(of: WebInventory) -> float | None:
    return of._ended[instance_id("ap-1", "c1")].usd_total


def test_cost_of_an_app_that_was_never_counted_is_unknown():
    """A process that has just started must not report a day of containers as free."""
    of = inventory(Clock())
    of.end(app(count=1), "c1")
    assert usd(of) is None


async def test_cost_since_the_last_count_is_that_of_all_containers():
    clock = Clock()
    of = inventory(clock)
    clock.now += 10.0
    await of._instances(app(count=1))
    clock.now += 30.0
    of.end(app(count=1), "c1")
    assert usd(of) == pytest.approx((10 * 1 + 30 * 4) * 0.001)


async def test_app_that_goes_back_is_not_billed_twice():
    clock = Clock()
    of = inventory(clock)
    clock.now += 10.0
    await of._instances(app(count=1))
    for _ in range(3):
        clock.now += 50.0
        await of._instances(app(count=1, claim="c2", earlier=("c1",)))
    of.end(app(count=1, claim="c2", earlier=("c1",)), "c2")
    clock.now += 10.0
    of.end(app(count=1), "c1")
    assert usd(of) == pytest.approx((10 * 1 + 10 * 4) * 0.001)


async def test_inventory_app_that_goes_back_after_a_restart_is_not_billed_twice():
    clock = Clock()
    of = inventory(clock)
    clock.now += 36_000.0
    newer = app(count=1, claim="c2", earlier=("c1",))
    await of._instances(newer)
    of.end(newer, "c2")
    clock.now += 10.0
    await of._instances(app(count=1))
    clock.now += 5.0
    of.end(app(count=1), "c1")
    assert of._ended[instance_id("ap-1", "c2")].usd_total == pytest.approx(36_000 * 4 * 0.001)
    assert usd(of) == pytest.approx((10 * 1 + 5 * 4) * 0.001)
