"""Writes of a process that does not lead never leave it."""

from __future__ import annotations

import pytest

from skysail.core.fence import Fenced, FencedTransport
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import NAMESPACE
from skysail.kube.client.client import Client
from tests.simulation.api import ApiModel
from tests.simulation.world import World
from tests.support import virtual_time


class Deposed:
    def check(self) -> None:
        raise Fenced("another process leads")


def test_who_does_not_lead_reads_and_does_not_write():
    async def test() -> None:
        world = World()
        client = Client(FencedTransport(ApiModel(world), Deposed()))
        assert (await client.get(NAMESPACE, "", "default", Object)).metadata.name == "default"
        with pytest.raises(Fenced):
            await client.create(NAMESPACE, {"metadata": {"name": "new"}}, Object)
        assert ("", "new") not in world.objects[NAMESPACE]

    virtual_time.run(test())
