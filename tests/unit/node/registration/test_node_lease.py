"""The Lease of a node, kept by the process that serves it, and by those that could."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from skysail.kube.api.objects import Object
from skysail.kube.api.resources import LEASE, NAMESPACE, NODE
from skysail.kube.client.client import Client
from skysail.kube.client.transport import Reply, Request
from skysail.node.registration.node_lease import NodeLease
from tests.simulation.api import ApiModel
from tests.simulation.world import World
from tests.support import virtual_time

START = datetime(2026, 11, 15, tzinfo=UTC)


class Counting(ApiModel):
    writes = 0

    async def send(self, request: Request) -> Reply:
        self.writes += request.is_mutating
        return await super().send(request)


class Harness:
    """An API server with a node on it, and any number of processes that know of the node."""

    def __init__(self) -> None:
        self.world = World()
        self.user = Client(ApiModel(self.world))

    async def populate(self) -> None:
        for resource, metadata in ((NAMESPACE, {"name": "kube-node-lease"}), (NODE, {"name": "n"})):
            manifest = {"apiVersion": "v1", "kind": resource.kind, "metadata": metadata}
            await self.user.create(resource, manifest, Object)

    @asynccontextmanager
    async def process(self, mode: str, *, behind: float = 0.0):
        """`behind`: how slow its clock is, in seconds."""

        def now() -> datetime:
            return START + timedelta(seconds=asyncio.get_running_loop().time() - behind)

        server = Counting(self.world)
        task = asyncio.create_task(getattr(NodeLease(Client(server), "n", now), mode)())
        yield server
        task.cancel()
        await asyncio.wait([task])

    @property
    def lease(self) -> dict:
        return self.world.objects[LEASE][("kube-node-lease", "n")]

    async def longest_silence(self, seconds: int) -> int:
        """The longest time without a change, looked at every second."""
        longest, silent, seen = 0, 0, ""
        for _ in range(seconds):
            await asyncio.sleep(1)
            silent = silent + 1 if self.lease["spec"]["renewTime"] == seen else 0
            seen = self.lease["spec"]["renewTime"]
            longest = max(longest, silent)
        return longest


def test_a_lease_is_made_for_a_node_and_belongs_to_it():
    async def play() -> None:
        harness = Harness()
        await harness.populate()
        async with harness.process("renew_forever"):
            await asyncio.sleep(1)
            node = harness.world.objects[NODE][("", "n")]
            assert harness.lease["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]
            assert harness.lease["spec"]["leaseDurationSeconds"] == 40

    virtual_time.run(play())


@pytest.mark.parametrize("behind", [0.0, 3600.0, -3600.0])
def test_who_stands_by_writes_nothing_while_the_other_lives(behind):
    async def play() -> None:
        harness = Harness()
        await harness.populate()
        async with harness.process("renew_forever"):
            await asyncio.sleep(1)
            async with harness.process("stand_by", behind=behind) as standby:
                await asyncio.sleep(600)
                assert standby.writes == 0

    virtual_time.run(play())


@pytest.mark.parametrize("behind", [0.0, 3600.0, -3600.0])
def test_a_node_lives_on_when_the_process_that_served_it_dies(behind):
    async def play() -> None:
        harness = Harness()
        await harness.populate()
        async with harness.process("renew_forever"):
            await asyncio.sleep(25)
        async with harness.process("stand_by", behind=behind) as standby:
            assert await harness.longest_silence(600) < 40
            assert standby.writes > 0

    virtual_time.run(play())


def test_without_a_node_there_is_no_lease_and_no_noise(caplog):
    async def play() -> None:
        harness = Harness()
        async with harness.process("renew_forever") as keeper:
            await asyncio.sleep(60)
            assert LEASE not in harness.world.objects or not harness.world.objects[LEASE]
            assert keeper.writes < 120

    virtual_time.run(play())
    assert "not renewed" not in caplog.text
