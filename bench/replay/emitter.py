"""The replay server's own two paths: events on demand, and what was counted."""

from __future__ import annotations

import asyncio
import itertools
import random
import time

import msgspec
from aiohttp import web

from bench.replay.world import Manifest, World
from bench.workload import SENT
from skysail.kube.client.transport import JSON


class Emission(msgspec.Struct, frozen=True):
    """So many pod events, so many a second."""

    events: int
    rate: int


class Emitted(msgspec.Struct, frozen=True):
    """`late` is the longest that the server itself was behind its timetable, in seconds."""

    events: int
    late: float


class Emitter:
    def __init__(self, world: World) -> None:
        self._world = world

    async def emit(self, request: web.Request) -> web.Response:
        """Returns when the last event was sent. Shuffled, so that two events of one job seldom come together."""
        emission = msgspec.json.decode(await request.read(), type=Emission)
        names = self._world.pods.names
        random.Random(1).shuffle(names)
        began = time.monotonic()
        late = 0.0
        for number, name in enumerate(itertools.islice(itertools.cycle(names), emission.events)):
            due = began + number / emission.rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            late = max(late, time.monotonic() - due)
            self._world.pods.change(name, _stamped)
        return web.Response(body=msgspec.json.encode(Emitted(emission.events, late)), content_type=JSON)

    async def counts(self, _: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(self._world.counts), content_type=JSON)


def _stamped(pod: Manifest) -> Manifest:
    pod["metadata"]["annotations"][SENT] = str(time.monotonic())
    return pod
