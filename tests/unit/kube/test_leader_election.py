"""Leader election on the simulated API server, under virtual time."""

import asyncio
import random
from datetime import timedelta

from skysail.kube.api.objects import Key
from skysail.kube.api.resources import LEASE
from skysail.kube.client.client import Client
from skysail.kube.client.errors import Unreachable
from skysail.kube.client.transport import Reply
from skysail.kube.leader_election import LeaderElector, Lease
from tests.simulation.api import ApiModel
from tests.simulation.world import EPOCH, World
from tests.support import virtual_time

KEY = Key("default", "the-lease")


class FakeTransport:
    """A transport that can be cut."""

    def __init__(self, world: World) -> None:
        self._model = ApiModel(world)
        self.is_cut = False
        self.delay = 0.0

    async def send(self, request):
        await asyncio.sleep(self.delay)
        if self.is_cut:
            raise Unreachable("cut")
        return await self._model.send(request)


def elector(fake_transport: FakeTransport, name: str) -> LeaderElector:
    loop = asyncio.get_running_loop()
    return LeaderElector(
        Client(fake_transport),
        KEY,
        name,
        now=lambda: EPOCH + timedelta(seconds=loop.time()),
        clock=loop.time,
        rng=random.Random(name),
    )


async def lease(world: World) -> Lease:
    return await Client(ApiModel(world)).get(LEASE, KEY.namespace, KEY.name, Lease)


def test_one_of_two_leads_and_the_other_waits():
    async def main():
        world = World()
        electors = [elector(FakeTransport(world), name) for name in "ab"]
        tasks = [asyncio.create_task(e.run()) for e in electors]
        seen = set()
        for _ in range(600):
            await asyncio.sleep(0.1)
            seen.add(tuple(e.is_leader for e in electors))
        for task in tasks:
            task.cancel()
        return seen

    seen = virtual_time.run(main())
    assert (True, True) not in seen
    assert len(seen - {(False, False)}) == 1


def test_a_leader_that_is_cut_off_stops_leading_before_anybody_else_starts():
    async def main():
        world = World()
        fake_transports = [FakeTransport(world) for _ in "ab"]
        first, second = (
            elector(fake_transport, name) for fake_transport, name in zip(fake_transports, "ab", strict=True)
        )
        campaign = asyncio.create_task(first.run())
        await first.elected.wait()
        rival = asyncio.create_task(second.run())
        await asyncio.sleep(5)
        fake_transports[0].is_cut = True
        both = False
        while not second.is_leader:
            await asyncio.sleep(0.05)
            both = both or (first.is_leader and second.is_leader)
        await campaign  # returns because the lease was lost
        rival.cancel()
        return both, asyncio.get_running_loop().time(), (await lease(world)).spec

    both, at, spec = virtual_time.run(main())
    assert not both
    assert 15 < at < 30
    assert (spec.holder_identity, spec.lease_transitions) == ("b", 2)


def test_a_released_lease_is_taken_at_the_next_try():
    async def main():
        world = World()
        first, second = elector(FakeTransport(world), "a"), elector(FakeTransport(world), "b")
        campaign = asyncio.create_task(first.run())
        await first.elected.wait()
        rival = asyncio.create_task(second.run())
        await asyncio.sleep(5)
        campaign.cancel()
        await first.release()
        released = asyncio.get_running_loop().time()
        await second.elected.wait()
        rival.cancel()
        return asyncio.get_running_loop().time() - released, first.is_leader

    waited, leads = virtual_time.run(main())
    assert waited < 5
    assert not leads


def test_who_is_alone_takes_the_lease_of_a_dead_process_at_once():
    async def main():
        world = World()
        dead = asyncio.create_task(elector(FakeTransport(world), "dead").run())
        await asyncio.sleep(5)
        dead.cancel()
        alone = elector(FakeTransport(world), "alone")
        campaign = asyncio.create_task(alone.run(force=True))
        await asyncio.sleep(0.1)
        campaign.cancel()
        return alone.is_leader, (await lease(world)).spec.holder_identity

    assert virtual_time.run(main()) == (True, "alone")


def test_who_only_thinks_to_be_alone_ends_when_another_takes_the_lease():
    async def main():
        world = World()
        wrong, other = (elector(FakeTransport(world), name) for name in ("wrong", "other"))
        first = asyncio.create_task(wrong.run(force=True))
        await wrong.elected.wait()
        second = asyncio.create_task(other.run(force=True))
        async with asyncio.timeout(600):
            await first
        second.cancel()
        return wrong.is_leader, other.is_leader, (await lease(world)).spec.holder_identity

    assert virtual_time.run(main()) == (False, True, "other")


def test_a_paused_process_knows_that_its_lease_ran_out():
    async def main():
        fake_transport = FakeTransport(World())
        e = elector(fake_transport, "a")
        campaign = asyncio.create_task(e.run())
        await e.elected.wait()
        campaign.cancel()
        asyncio.get_running_loop().jump(60)
        return e.is_leader

    assert virtual_time.run(main()) is False


def test_a_renewal_that_comes_too_late_ends_the_campaign():
    async def main():
        fake_transport = FakeTransport(World())
        e = elector(fake_transport, "a")
        campaign = asyncio.create_task(e.run())
        await e.elected.wait()
        fake_transport.delay = 7.0
        await campaign
        return e.is_leader

    assert virtual_time.run(main()) is False


def test_a_reply_that_cannot_be_read_does_not_end_the_campaign():
    class Page(FakeTransport):
        async def send(self, request):
            return Reply(status=200, body=b"<html>")

    async def main():
        campaign = asyncio.create_task(elector(Page(World()), "a").run())
        await asyncio.sleep(60)
        is_running = not campaign.done()
        campaign.cancel()
        return is_running

    assert virtual_time.run(main())
