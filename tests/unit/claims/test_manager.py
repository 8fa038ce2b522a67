"""What a process holds of claims, joined."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

from skysail.claims.dependencies import Surroundings
from skysail.claims.limits import launch_history
from skysail.claims.manager import Bureau, Rules
from skysail.claims.reconciler import INDEXES
from skysail.claims.snapshot import Owner, Seen
from skysail.claims.types import CLOUD_INSTANCE, CloudInstance
from skysail.cloud.errors import Unknown
from skysail.core.actions import End, Launch
from skysail.kube.api.objects import Key
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import Client
from tests.simulation.api import ApiModel
from tests.simulation.world import World
from tests.support import virtual_time
from tests.unit.claims.samples import (
    CLOUD,
    CLUSTER,
    NAME,
    NOW,
    UID,
    ScriptedCloud,
    ago,
    claim,
    instance,
    moved,
    order,
    spec,
)


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
        self.bureau.calls.launch(Launch(CLOUD, CLOUD_INSTANCE.resource, of, order(), of.status))
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
        await asyncio.sleep(2)
        house.claims.put(moved(of, state="Terminated", launching=None))
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
        assert house.bureau.calls.last(NAME) is None

    virtual_time.run(story())


def test_who_lost_its_owner_is_woken():
    async def story() -> None:
        house = House()
        of = claim("Running")
        house.claims.put(of)
        pod = claim("Running", metadata={"uid": of.spec.for_.uid, "namespace": "n"})
        elsewhere = claim("Running", metadata={"uid": of.spec.for_.uid, "namespace": "elsewhere"})
        house.woken.clear()
        house.bureau.owner_changed(None, pod)
        house.bureau.owner_changed(pod, pod)
        house.bureau.owner_changed(elsewhere, None)
        assert house.woken == []
        house.bureau.owner_changed(pod, None)
        assert house.woken == [Key("", NAME)]

    virtual_time.run(story())


def test_an_earlier_launch_is_woken_by_the_next_one_for_the_same_object():
    async def story() -> None:
        house = House()
        house.claims.put(claim("Terminated"))
        house.woken.clear()
        house.claims.put(claim("Claimed", of=spec(launch=1)))
        assert Key("", NAME) in house.woken

    virtual_time.run(story())


def test_launches_that_an_earlier_process_wrote_down_count_for_the_brake():
    async def story() -> None:
        house = House()
        house.bureau.remember([launch_history.Launch(NOW - timedelta(minutes=9), spec())] * 5)
        assert "5 launches in 10 minutes" in (await observed(house)).brake

    virtual_time.run(story())


async def observed(house):
    house.claims.put(claim("Claimed"))
    return await house.bureau.controller.observe(Key("", NAME))


def test_a_call_whose_claim_does_not_wait_for_it_any_more_is_broken_off():
    async def story() -> None:
        house = House()
        of = house.launch(None)
        await asyncio.sleep(2)
        house.claims.put(moved(of, state="Unknown"))
        await asyncio.sleep(1)
        assert isinstance(house.bureau.calls.last(NAME).error, Unknown)

    virtual_time.run(story())


def test_an_order_is_forgotten_when_it_is_certain_that_it_is_not_needed_again():
    async def story() -> None:
        house = House()
        of = house.launch(None)
        for state in ("Unknown", "Claimed"):
            of = moved(of, state=state)
            house.claims.put(of)
            assert house.bureau.orders.get(NAME) is not None
        house.claims.put(moved(of, state="Starting", instance_id="i-1"))
        assert house.bureau.orders.get(NAME) is None

    virtual_time.run(story())


def test_an_order_that_was_never_carried_out_goes_with_the_end_of_its_claim():
    async def story() -> None:
        house = House()
        house.bureau.orders.put(order())
        house.claims.put(claim("Terminated"))
        assert house.bureau.orders.get(NAME) is None

    virtual_time.run(story())


def test_the_time_of_an_instance_is_measured_by_the_clock_that_nobody_sets():
    async def story() -> None:
        house = House()
        of = claim("Running", nonce="theirs", deadline_time=ago(-590))
        house.claims.put(of)
        await asyncio.sleep(599)
        house.claims.put(moved(of))
        assert (await house.plan()).actions == ()
        await asyncio.sleep(1)
        assert (await house.plan()).actions == (End(CLOUD, "i-1", 30.0),)
        house.claims.put(moved(moved(of), deadline_time=ago(-1200)))
        assert (await house.plan()).actions == ()

    virtual_time.run(story())


def test_launches_before_a_process_brake_it():
    async def story() -> None:
        house = House()
        for number in range(5):
            house.claims.put(claim("Terminated", of=spec(launch=number), start_time=ago(number)))
        house.claims.put(claim("Claimed", of=spec(launch=9)))
        running = asyncio.create_task(house.bureau.run(lambda _: None))
        await asyncio.sleep(1)
        snapshot = await house.bureau.controller.observe(Key("", f"{UID}-9"))
        assert "5 launches" in snapshot.brake
        running.cancel()
        await asyncio.wait([running])

    virtual_time.run(story())
