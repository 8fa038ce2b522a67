"""The course that every contestant runs: fill the caches, write every status, answer events at a steady rate, then as
many as come at once.

The steady rate gives latencies. The burst gives the cost: on a machine that sleeps between two events, a processor's
caches are cold at each of them, and the same work takes two or three times as long as in a program that never rests.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

import aiohttp
import msgspec

from bench.clients.ledger import Ledger
from bench.process import Cost, Moment, highest_memory, memory
from bench.replay.emitter import Emission, Emitted
from bench.size import Size

# A contestant that cannot keep up is not waited for longer than this.
_TIMEOUT_SECONDS = 30.0
# A rate that no server reaches.
_MAX_CONCURRENT = 1_000_000_000


class Contestant(Protocol):
    """One way to run the controller. Used once, with `sync` before `work`."""

    @property
    def ledger(self) -> Ledger: ...

    async def sync(self) -> None:
        """Return when every object is in the store."""
        ...

    async def work(self) -> None:
        """Start the workers. Returns at once."""
        ...

    async def stop(self) -> None: ...


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """How a stream of events was answered. Latencies in seconds; `late` is how far the server itself was behind."""

    cost: Cost
    p50: float
    p99: float
    events: int
    answered: int
    looks: int
    late: float

    @property
    def is_saturated(self) -> bool:
        """Whether the processor never rested, so that latencies grow with the length of the stream."""
        return self.cost.cpu > self.cost.seconds * 0.9


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What came out. Memory in MB."""

    sync: Cost
    write: Cost
    steady: Answers
    burst: Answers
    memory: float
    highest_memory: float
    requests: dict[str, int]


async def measure(contestant: Contestant, url: str, size: Size) -> Figures:
    ledger = contestant.ledger
    start = Moment.now()
    await contestant.sync()
    synced = Moment.now()
    await contestant.work()
    await ledger.all_content.wait()
    written = Moment.now()
    async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=None)) as server:
        steady = await _answer(ledger, server, Emission(size.events, size.rate))
        burst = await _answer(ledger, server, Emission(size.burst, _MAX_CONCURRENT))
        requests = await _counts(server)
    return Figures(
        sync=synced.since(start),
        write=written.since(synced),
        steady=steady,
        burst=burst,
        memory=memory(),
        highest_memory=highest_memory(),
        requests=requests,
    )


def percentile(ordered: list[float], part: float) -> float:
    """The value that this part of all values lies below."""
    assert ordered, "a contestant that answers no event at all is broken"
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


async def _answer(ledger: Ledger, server: aiohttp.ClientSession, emission: Emission) -> Answers:
    """Until every event is answered, or patience ends."""
    ledger.expect(emission.events)
    began = Moment.now()
    async with server.post("/bench/emit", data=msgspec.json.encode(emission)) as reply:
        emitted = msgspec.json.decode(await reply.read(), type=Emitted)
    with contextlib.suppress(TimeoutError):  # `answered` tells how many were
        await asyncio.wait_for(ledger.all_answered.wait(), _TIMEOUT_SECONDS)
    cost = Moment.now().since(began)
    latencies = sorted(ledger.latencies)
    return Answers(
        cost=cost,
        p50=percentile(latencies, 0.50),
        p99=percentile(latencies, 0.99),
        events=emitted.events,
        answered=len(latencies),
        looks=ledger.looks,
        late=emitted.late,
    )


async def _counts(server: aiohttp.ClientSession) -> dict[str, int]:
    async with server.get("/bench/counts") as reply:
        return msgspec.json.decode(await reply.read(), type=dict[str, int])
