"""The course that every contestant runs: fill the caches, write every status, answer events at a steady rate."""

from __future__ import annotations

import asyncio
from typing import Protocol

import aiohttp
import msgspec

from bench.clients.ledger import Ledger
from bench.process import Cost, Moment, highest_memory, memory
from bench.replay.emitter import Emission, Emitted
from bench.size import Size

# A contestant that cannot keep up is not waited for longer than this.
_PATIENCE_SECONDS = 45.0


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


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What came out. Latencies are in seconds, memory in MB; `answered` events of `events`."""

    sync: Cost
    write: Cost
    stream: Cost
    p50: float
    p99: float
    events: int
    answered: int
    looks: int
    memory: float
    highest_memory: float
    server_late: float
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
        ledger.expect(size.events)
        emitted = await _emit(server, Emission(size.events, size.rate))
        await _until_answered(ledger)
        ended = Moment.now()
        requests = await _counts(server)
    latencies = sorted(ledger.latencies)
    return Figures(
        sync=synced.since(start),
        write=written.since(synced),
        stream=ended.since(written),
        p50=percentile(latencies, 0.50),
        p99=percentile(latencies, 0.99),
        events=emitted.events,
        answered=len(latencies),
        looks=ledger.looks,
        memory=memory(),
        highest_memory=highest_memory(),
        server_late=emitted.late,
        requests=requests,
    )


def percentile(ordered: list[float], part: float) -> float:
    """The smallest value that this part of all values does not exceed; NaN where there are none."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else float("nan")


async def _emit(server: aiohttp.ClientSession, emission: Emission) -> Emitted:
    async with server.post("/bench/emit", data=msgspec.json.encode(emission)) as reply:
        return msgspec.json.decode(await reply.read(), type=Emitted)


async def _counts(server: aiohttp.ClientSession) -> dict[str, int]:
    async with server.get("/bench/counts") as reply:
        return msgspec.json.decode(await reply.read(), type=dict[str, int])


async def _until_answered(ledger: Ledger) -> None:
    try:
        await asyncio.wait_for(ledger.all_answered.wait(), _PATIENCE_SECONDS)
    except TimeoutError:
        return  # `answered` tells how many were
