"""What runs in our name without a claim ends; nothing else does."""

from __future__ import annotations

import asyncio
import random
from datetime import datetime, timedelta

import pytest

from skysail.claims.dependencies import ClaimDependencies
from skysail.claims.orphan_collector import OrphanCollector, orphans
from skysail.claims.reconciler import INDEXES
from skysail.claims.tracking.inventory import InventoryTracker
from skysail.claims.types import CLOUD_INSTANCE, CloudInstance
from skysail.cloud.errors import OutcomeUnknown
from skysail.core.fence import Fenced
from skysail.kube.api.objects import Key
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import Client
from skysail.kube.client.transport import Reply, Request
from tests.simulation.api import ApiModel
from tests.simulation.world import World
from tests.support import virtual_time
from tests.unit.claims.samples import CLUSTER, NAME, NOW, TERMS, ScriptedCloud, claim, instance

GRACE = 600.0


class Failing(ApiModel):
    """Refuses to read some claims."""

    refuses: str = ""

    async def send(self, request: Request) -> Reply:
        if self.refuses and request.path.endswith(self.refuses):
            return Reply(status=500, body=b"{}", headers={})
        return await super().send(request)


class Harness:
    """An account, an API server, and what the sweeper ended. A fence stands where the test puts it."""

    def __init__(self, *instances) -> None:
        self.server = Failing(World([CLOUD_INSTANCE.resource]))
        self.client = Client(self.server)
        self.cloud = ScriptedCloud(*instances)
        self.claims: Cache[CloudInstance] = Cache(CLOUD_INSTANCE.resource, CloudInstance, INDEXES)
        self.claims.synced.set()
        clock = asyncio.get_running_loop().time
        self.listings = InventoryTracker(self.cloud, CLUSTER, clock=clock, changed=lambda _: None)
        self.sweeper = OrphanCollector(
            self.client,
            self.listings,
            self.claims,
            grace=GRACE,
            deps=ClaimDependencies(self._now, clock, random.Random(1)),
        )
        self.ended: list[str] = []
        self.is_fenced = False
        self.mistake: Exception | None = None

    async def sweep(self, *, after: float = 0.0) -> list[str]:
        await asyncio.sleep(after)
        await self.listings.poll()
        await self.sweeper.collect(self._end)
        return self.ended

    async def create(self, name: str) -> None:
        manifest = {
            "apiVersion": CLOUD_INSTANCE.resource.api_version,
            "kind": "CloudInstance",
            "metadata": {"name": name},
            "spec": {"provider": "cloud", "owner": {"kind": "Pod", "name": "a", "uid": "u"}},
        }
        await self.client.create(CLOUD_INSTANCE.resource, manifest, CloudInstance)

    def _now(self) -> datetime:
        """When the scripted instances were just made."""
        return NOW - timedelta(seconds=60 - asyncio.get_running_loop().time())

    def _end(self, action) -> None:
        if self.is_fenced:
            raise Fenced("another process leads")
        if self.mistake is not None:
            raise self.mistake
        assert (action.cloud, action.grace) == ("cloud", 0.0)
        self.ended.append(action.instance)


def run_virtual(test) -> None:
    virtual_time.run(test())


@pytest.mark.parametrize(
    ("row", "is_orphan"),
    [
        (instance(), True),
        (instance(state="starting"), True),
        (instance(state="ended"), False),
        (instance(cluster="cluster-2"), False),
        (instance(cluster=""), False),
        (instance(claim=""), False),
        (instance(claim="known"), False),
    ],
)
def test_who_is_an_orphan(row, is_orphan):
    assert orphans([row], CLUSTER, lambda name: name == "known") == ([row] if is_orphan else [])


def test_an_orphan_ends_after_the_grace():
    async def test() -> None:
        harness = Harness(instance())
        assert await harness.sweep() == []
        assert await harness.sweep(after=GRACE - 1) == []
        assert await harness.sweep(after=1) == ["i-1"]

    run_virtual(test)


def test_orphan_collector_reports_orphan_once_inventories_are_reliable_until_gone():
    async def test() -> None:
        harness = Harness(*(instance(f"i-{number}") for number in range(5)))
        await harness.sweep()
        await harness.sweep(after=TERMS.visibility_delay - 1)
        assert harness.sweeper.orphan_message == ""
        await harness.sweep(after=1)
        assert "5 instances" in harness.sweeper.orphan_message
        assert "i-0, i-1, i-2 and 2 more" in harness.sweeper.orphan_message
        assert f"{GRACE:.0f} s" in harness.sweeper.orphan_message
        harness.cloud.instances = []
        await harness.sweep(after=1)
        assert harness.sweeper.orphan_message == ""

    run_virtual(test)


def test_an_orphan_that_was_away_in_between_must_be_seen_for_a_while_anew():
    async def test() -> None:
        harness = Harness(instance())
        await harness.sweep()
        harness.cloud.instances = []
        await harness.sweep(after=300)
        harness.cloud.instances = [instance()]
        await harness.sweep(after=300)
        assert await harness.sweep(after=TERMS.visibility_delay - 1) == []
        assert await harness.sweep(after=1) == ["i-1"]

    run_virtual(test)


def test_a_stranger_s_instance_is_never_touched():
    async def test() -> None:
        harness = Harness(instance("i-1", cluster="cluster-2"), instance("i-2", claim="", cluster=""), instance("i-3"))
        await harness.sweep()
        assert await harness.sweep(after=10 * GRACE) == ["i-3"]

    run_virtual(test)


def test_a_claim_that_only_the_server_knows_protects():
    async def test() -> None:
        harness = Harness(instance())
        await harness.create(NAME)
        await harness.sweep()
        assert await harness.sweep(after=GRACE) == []

    run_virtual(test)


def test_a_claim_in_the_cache_protects_without_a_question():
    async def test() -> None:
        harness = Harness(instance())
        harness.claims.put(claim("Running"))
        await harness.sweep()
        assert await harness.sweep(after=GRACE) == []

    run_virtual(test)


def test_a_server_that_does_not_answer_for_one_protects_that_one_only():
    async def test() -> None:
        harness = Harness(instance("i-1"), instance("i-2", claim="b"))
        harness.server.refuses = NAME
        await harness.sweep()
        assert await harness.sweep(after=GRACE) == ["i-2"]

    run_virtual(test)


@pytest.mark.parametrize("outage", [OutcomeUnknown("down")])
def test_nothing_is_swept_by_an_old_listing(outage):
    async def test() -> None:
        harness = Harness(instance())
        await harness.sweep()
        harness.cloud.listing = outage
        assert await harness.sweep(after=10 * GRACE) == []

    run_virtual(test)


def test_nothing_is_swept_before_the_first_listing():
    async def test() -> None:
        harness = Harness(instance())
        await harness.sweeper.collect(harness._end)
        assert harness.ended == []

    run_virtual(test)


def test_an_end_that_takes_its_time_is_asked_for_rarely():
    async def test() -> None:
        harness = Harness(instance())
        await harness.sweep()
        await harness.sweep(after=GRACE)
        for _ in range(50):
            await harness.sweep(after=5)
        assert harness.ended == ["i-1"]
        assert await harness.sweep(after=60) == ["i-1", "i-1"]

    run_virtual(test)


def test_a_mistake_in_one_sweep_does_not_end_the_others(caplog):
    async def test() -> None:
        harness = Harness(instance())
        harness.mistake = ZeroDivisionError("oops")
        polling = asyncio.create_task(harness.listings.run())
        sweeping = asyncio.create_task(harness.sweeper.run(harness._end))
        await asyncio.sleep(2 * GRACE)
        assert (harness.ended, sweeping.done()) == ([], False)
        harness.mistake = None
        await asyncio.sleep(10)
        assert harness.ended == ["i-1"]
        for task in (polling, sweeping):
            task.cancel()
        await asyncio.wait([polling, sweeping])

    run_virtual(test)
    assert "oops" in caplog.text


def test_a_process_that_does_not_lead_sweeps_when_it_leads_again():
    async def test() -> None:
        harness = Harness(instance())
        harness.is_fenced = True
        polling = asyncio.create_task(harness.listings.run())
        sweeping = asyncio.create_task(harness.sweeper.run(harness._end))
        await asyncio.sleep(2 * GRACE)
        assert (harness.ended, sweeping.done()) == ([], False)
        harness.is_fenced = False
        await asyncio.sleep(10)
        assert set(harness.ended) == {"i-1"}
        for task in (polling, sweeping):
            task.cancel()
        await asyncio.wait([polling, sweeping])

    run_virtual(test)


def test_what_was_made_long_ago_waits_only_as_long_as_listings_may_be_wrong():
    """Else a process that ends more often than every ten minutes would never sweep."""

    async def test() -> None:
        harness = Harness(instance(created=NOW.timestamp() - 60 - GRACE))
        assert await harness.sweep() == []
        assert await harness.sweep(after=TERMS.visibility_delay - 1) == []
        assert await harness.sweep(after=1.0) == ["i-1"]

    run_virtual(test)


def test_nothing_is_swept_while_a_claim_cannot_be_read():
    async def test() -> None:
        harness = Harness(instance())
        harness.claims.undecodable.add(Key("", "of-a-newer-skysail"))
        await harness.sweep()
        assert await harness.sweep(after=GRACE) == []
        harness.claims.undecodable.clear()
        harness.claims.synced.clear()
        assert await harness.sweep(after=GRACE) == []
        harness.claims.synced.set()
        await harness.sweep()
        assert await harness.sweep(after=GRACE) == ["i-1"]

    run_virtual(test)
