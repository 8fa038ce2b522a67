"""What a process holds of claims, joined."""

from __future__ import annotations

import asyncio
import random

from skysail.claims.bureau import Bureau, Rules, Surroundings
from skysail.claims.observe import INDEXES
from skysail.claims.snapshot import Owner, Seen
from skysail.claims.types import CLOUD_INSTANCE, CloudInstance
from skysail.core.actions import End, Launch
from skysail.kube.cache import Cache
from skysail.kube.client import Client
from skysail.kube.objects import Key
from tests.simulation.api import ApiModel
from tests.simulation.world import World
from tests.support import virtual_time
from tests.unit.claims.stock import CLOUD, CLUSTER, NAME, NOW, ScriptedCloud, claim, instance, moved, order


class Known:
    """Every owner is there."""

    async def find(self, for_) -> Owner:
        return Owner.PRESENT


class House:
    def __init__(self, *instances) -> None:
        self.cloud = ScriptedCloud(*instances)
        self.claims: Cache[CloudInstance] = Cache(CLOUD_INSTANCE.resource, CloudInstance, INDEXES)
        self.claims.synced.set()
        client = Client(ApiModel(World([CLOUD_INSTANCE.resource])))
        around = Surroundings(lambda: NOW, asyncio.get_running_loop().time, random.Random(1))
        rules = Rules(cluster=CLUSTER, identity="me")
        self.bureau = Bureau(client, self.claims, {CLOUD: self.cloud}, Known(), rules=rules, around=around)
        self.woken: list[Key] = []
        self.bureau.attach(self.woken.append)

    def launch(self, answer) -> CloudInstance:
        self.cloud.answers.append(answer)
        of = claim("Launching", nonce=self.bureau.calls.ticket(NAME))
        self.claims.put(of)
        self.bureau.orders.put(order())
        self.bureau.calls.launch(Launch(CLOUD, CLOUD_INSTANCE.resource, of, order()))
        return of

    async def plan(self):
        controller = self.bureau.controller
        return controller.plan(await controller.observe(Key("", NAME)))


def test_an_answer_is_known_although_its_claim_is_in_doubt_since():
    async def story() -> None:
        house = House()
        of = house.launch(instance())
        await asyncio.sleep(2)
        house.claims.put(moved(of, state="Unknown"))
        assert house.bureau.listings[CLOUD].sight(NAME) == Seen((instance(),))
        assert (await house.plan()).status.instance_id == "i-1"

    virtual_time.run(story())


def test_an_answer_that_comes_after_the_end_is_ended():
    async def story() -> None:
        house = House()
        of = house.launch(instance())
        house.claims.put(moved(of, state="Terminated", launching=None))
        await asyncio.sleep(2)
        assert (await house.plan()).actions == (End(CLOUD, "i-1", 30.0),)

    virtual_time.run(story())


def test_what_is_remembered_of_a_claim_goes_with_it_and_not_before():
    async def story() -> None:
        house = House()
        house.bureau.orders.put(order())
        assert await house.bureau.controller.observe(Key("", NAME)) is None
        assert house.bureau.orders.get(NAME) is not None
        of = house.launch(None)
        ticket = house.bureau.calls.ticket(NAME)
        house.claims.ended(of)
        assert house.bureau.orders.get(NAME) is None
        assert house.bureau.calls.ticket(NAME) != ticket
        assert house.bureau.calls.call(of) is None

    virtual_time.run(story())


def test_who_lost_its_owner_is_woken():
    async def story() -> None:
        house = House()
        of = claim("Running")
        house.claims.put(of)
        pod = claim("Running", metadata={"uid": of.spec.for_.uid})
        house.bureau.owner_changed(None, pod)
        house.bureau.owner_changed(pod, pod)
        assert house.woken == []
        house.bureau.owner_changed(pod, None)
        assert house.woken == [Key("", NAME)]

    virtual_time.run(story())
