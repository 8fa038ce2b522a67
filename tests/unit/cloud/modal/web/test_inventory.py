"""Listings of web Apps that do not answer. Costs of Apps, known only as far as this process has counted containers."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from skysail.cloud.modal.web import inventory as inventory_module
from skysail.cloud.modal.web.inventory import DeployedApp, WebInventory
from skysail.cloud.modal.web.tags import WebTags, instance_id, prefix
from tests.support import virtual_time

CLUSTER = "0f6d1f0e-9d54-4d2d-8a3a-222222222222"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def app(
    *, count: int, claim: str = "c1", earlier: tuple[str, ...] = (), is_returned: bool = False, app_id: str = "ap-1"
) -> DeployedApp:
    async def stats() -> Any:
        return SimpleNamespace(num_total_runners=count)

    return DeployedApp(
        handle=SimpleNamespace(app_id=app_id, name="ow-x"),  # type: ignore[arg-type]
        tags=WebTags(
            claim=claim,
            cluster=CLUSTER,
            created=1000.0,
            usd_per_hour=3.6,
            max_containers=4,
            earlier=earlier,
            is_returned=is_returned,
        ),
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
    of.end(app(count=1, is_returned=True), "c1")
    assert usd(of) == pytest.approx((10 * 1 + 10 * 4) * 0.001)


async def test_inventory_app_that_goes_back_after_a_restart_has_an_unknown_cost():
    """The process that counted the earlier claim has ended: its share of the cost must not be reported as free."""
    clock = Clock()
    of = inventory(clock)
    clock.now += 36_000.0
    newer = app(count=1, claim="c2", earlier=("c1",))
    await of._instances(newer)
    of.end(newer, "c2")
    clock.now += 10.0
    await of._instances(app(count=1, is_returned=True))
    clock.now += 5.0
    of.end(app(count=1, is_returned=True), "c1")
    assert of._ended[instance_id("ap-1", "c2")].usd_total == pytest.approx(36_000 * 4 * 0.001)
    assert usd(of) is None


async def test_inventory_restart_after_an_app_went_back_has_an_unknown_cost():
    clock = Clock()
    of = inventory(clock)
    clock.now += 10.0
    await of._instances(app(count=1, is_returned=True))
    of.end(app(count=1, is_returned=True), "c1")
    assert usd(of) is None


_STATS = SimpleNamespace(num_total_runners=1)


def _answer(value: Any) -> Any:
    return SimpleNamespace(aio=lambda: asyncio.sleep(0, value))


class Sdk:
    """Apps of the SDK. The tags of hung ones never come, and a cancelled call cleans up for a long time."""

    def __init__(self, count: int) -> None:
        self.hung: set[int] = set()
        self.claim = ""
        self.environment = ""
        self.Environment = SimpleNamespace(from_context=lambda client: self)
        function = SimpleNamespace(get_web_url=_answer("https://x.modal.run"), get_current_stats=_answer(_STATS))
        self.Function = SimpleNamespace(from_name=lambda *_args, **_options: function)
        self.apps = SimpleNamespace(list=_answer([self._app(number) for number in range(count)]))

    async def client(self) -> None:
        return None

    def _app(self, number: int) -> Any:
        async def tags(client: Any) -> dict[str, str]:
            if number in self.hung:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(1000.0)
                await asyncio.sleep(1000.0)
            return {"owner": "skysail", "cluster": CLUSTER, "claim": self.claim or f"c{number}"}

        name = f"{prefix(CLUSTER)}default.a{number}"
        return SimpleNamespace(app_id=f"ap-{number}", name=name, get_tags=SimpleNamespace(aio=tags))


def play_listings(monkeypatch, sdk: Sdk, hung_before_each: list[set[int]]) -> list[Any]:
    """Return the inventories of listings, one after the other. The time of each is limited."""

    async def play() -> list[Any]:
        of, found = WebInventory(sdk, CLUSTER, now=Clock()), []  # type: ignore[arg-type]
        for hung in hung_before_each:
            sdk.hung = hung
            async with asyncio.timeout(15.5):
                found.append(await of.list_all())
        return found

    monkeypatch.setattr(inventory_module, "modal", sdk)
    return virtual_time.run(play())


def test_inventory_many_apps_that_hang_delay_no_listing(monkeypatch):
    hung = set(range(20))
    _, found = play_listings(monkeypatch, Sdk(25), [set(), hung])
    assert found.complete
    assert {"c0", "c19", instance_id("ap-7", "c7")} <= found.unreadable


def test_inventory_apps_that_hang_are_read_after_the_others(monkeypatch):
    """Each listing finds out about as many hung Apps as it reads at a time."""
    found = play_listings(monkeypatch, Sdk(25), [set(), *[set(range(20))] * 4])[-1]
    assert {row.claim for row in found.instances} == {f"c{number}" for number in range(20, 25)}
    assert found.unreadable == {name for n in range(20) for name in (f"c{n}", instance_id(f"ap-{n}", f"c{n}"))}


def test_inventory_app_that_hangs_after_a_take_over_hides_the_new_claim(monkeypatch):
    """A listing between the begin of a deploy and its new tags still reads the old ones."""
    sdk = Sdk(1)
    monkeypatch.setattr(inventory_module, "modal", sdk)

    async def play() -> list[Any]:
        of = WebInventory(sdk, CLUSTER, now=Clock())  # type: ignore[arg-type]
        of.expect(app(count=1, app_id="ap-0"), "new")
        found = [await of.list_all()]
        sdk.hung = {0}
        found.append(await of.list_all())
        sdk.hung, sdk.claim = set(), "new"
        await of.list_all()
        sdk.hung, sdk.claim = {0}, "newest"
        return [*found, await of.list_all()]

    read, hidden, known = virtual_time.run(play())
    assert (read.complete, read.unreadable) == (True, set())
    assert hidden.unreadable == {"c0", "new", instance_id("ap-0", "c0"), instance_id("ap-0", "new")}
    assert known.unreadable == {"new", instance_id("ap-0", "new")}


def test_inventory_app_that_was_never_read_and_hangs_makes_the_listing_incomplete(monkeypatch):
    (found,) = play_listings(monkeypatch, Sdk(3), [{1}])
    assert {row.claim for row in found.instances} == {"c0", "c2"}
    assert not found.complete
    assert "default.a1" in found.problem
