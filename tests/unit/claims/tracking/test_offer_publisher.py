"""Published offers: one key per provider, written only if offers or prices changed."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from skysail.claims.tracking.offer_catalogue import OfferCatalogue
from skysail.claims.tracking.offer_publisher import NAME, OfferPublisher, OffersPage
from skysail.cloud.errors import OutcomeUnknown
from skysail.cloud.offers import OfferList
from skysail.kube.api.objects import Meta
from skysail.kube.api.resources import CONFIG_MAP, NAMESPACE
from skysail.kube.client.client import Client
from skysail.kube.client.transport import Reply, Request
from tests.simulation.api import ApiModel
from tests.simulation.ownership import Manager
from tests.simulation.world import World
from tests.simulation.writes import Write
from tests.support import virtual_time
from tests.unit.claims.samples import CLOUD, NOW, OFFERS, ScriptedCloud

HOME = "skysail-system"


class Server(ApiModel):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.writes: list[str] = []
        self.is_down = False

    async def send(self, request: Request) -> Reply:
        if self.is_down:
            return Reply(status=503, body=b"{}", headers={})
        if request.is_mutating:
            self.writes.append(request.method)
        return await super().send(request)


class Harness:
    def __init__(self) -> None:
        self.world = World()
        self.world.create(self.world.kinds[NAMESPACE], {"metadata": {"name": HOME}}, Write(Manager("test", "Update")))
        self.server = Server(self.world)
        self.client = Client(self.server)
        self.clouds = {CLOUD: ScriptedCloud(), "other": ScriptedCloud()}

    @asynccontextmanager
    async def operator(self, seconds: float = 60.0):
        catalogue = OfferCatalogue(self.clouds)
        publisher = OfferPublisher(self.client, HOME, catalogue)
        tasks = [asyncio.create_task(catalogue.run()), asyncio.create_task(publisher.run())]
        await asyncio.sleep(seconds)
        yield
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def lists(self) -> dict[str, OfferList]:
        return (await self.client.get(CONFIG_MAP, HOME, NAME, OffersPage)).lists


def test_publisher_offers_listed_writes_one_key_per_provider():
    async def test() -> None:
        harness = Harness()
        async with harness.operator():
            assert {name: listed.offers for name, listed in (await harness.lists()).items()} == {
                CLOUD: OFFERS,
                "other": OFFERS,
            }

    virtual_time.run(test())


def test_publisher_nothing_changed_writes_nothing_also_after_a_restart():
    async def test() -> None:
        harness = Harness()
        async with harness.operator():
            before = len(harness.server.writes)
        for cloud in harness.clouds.values():
            cloud.offered = OfferList(OFFERS, NOW.timestamp() + 900)
        async with harness.operator(3600):
            assert len(harness.server.writes) == before

    virtual_time.run(test())


def test_publisher_price_changed_writes_that_provider_once():
    async def test() -> None:
        harness = Harness()
        async with harness.operator():
            before = len(harness.server.writes)
            harness.clouds["other"].offered = OfferList(OFFERS[:2], NOW.timestamp() + 300)
            await asyncio.sleep(600)
            assert len(harness.server.writes) == before + 1
            lists = await harness.lists()
            assert (lists["other"].offers, lists[CLOUD].offers) == (OFFERS[:2], OFFERS)

    virtual_time.run(test())


def test_publisher_cloud_down_keeps_its_published_offers():
    async def test() -> None:
        harness = Harness()
        async with harness.operator():
            pass
        harness.clouds["other"].offered = OutcomeUnknown("down")
        async with harness.operator():
            assert set(await harness.lists()) == {CLOUD, "other"}

    virtual_time.run(test())


def test_publisher_api_server_down_writes_later():
    async def test() -> None:
        harness = Harness()
        harness.server.is_down = True
        async with harness.operator():
            harness.server.is_down = False
            await asyncio.sleep(15)
            assert set(await harness.lists()) == {CLOUD, "other"}

    virtual_time.run(test())


def test_page_key_that_cannot_be_decoded_is_left_out():
    page = OffersPage(Meta(name=NAME), {"modal": "no json", "runpod": '{"offers": [], "at": 1.0}'})
    assert page.lists == {"runpod": OfferList((), 1.0)}
