"""CPU and memory usage of runs, sampled at a fixed interval, so that all readers get the same values.

A CPU rate is the difference of two samples. The first two samples follow each other closely, so that a restarted node
has rates soon; until then they are unknown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

import msgspec

from skysail.cloud.errors import ProviderError, Unsupported
from skysail.cloud.provider import Provider, RunId, Usage

_INITIAL_DELAY = 1.0
_SAMPLE_SECONDS = 5.0

log = logging.getLogger(__name__)


class Sample(msgspec.Struct, frozen=True):
    """Usage at one moment. `ended` is the CPU time of runs that ended, because the node's counter must not decrease."""

    at: float
    usage: Mapping[RunId, Usage]
    ended: float = 0.0

    @property
    def total(self) -> Usage:
        return Usage(
            cpu_seconds=self.ended + sum(used.cpu_seconds for used in self.usage.values()),
            memory=sum(used.memory for used in self.usage.values()),
        )


class Rate(msgspec.Struct, frozen=True):
    """Usage of a run: average cores since the previous sample, and bytes now."""

    cores: float
    memory: int


def rates(previous: Sample, after: Sample) -> dict[RunId, Rate]:
    """Return the rates of runs that are in both samples. The rate of a newer run is not known yet."""
    seconds = after.at - previous.at
    return {
        run: Rate(max(0.0, used.cpu_seconds - previous.usage[run].cpu_seconds) / seconds, used.memory)
        for run, used in after.usage.items()
        if run in previous.usage and seconds > 0
    }


class UsageSampler:
    """Samples the usage of all runs of a provider."""

    def __init__(self, provider: Provider, wall: Callable[[], float]) -> None:
        self._provider = provider
        self._wall = wall
        self.started = wall()
        self._before: Sample | None = None
        self._after: Sample | None = None

    async def run(self) -> None:
        """Sample until cancelled. Returns at once if the provider has no usage data."""
        while self._provider.features.stats:
            try:
                await self._sample()
            except ProviderError as error:
                log.info("usage not sampled", extra={"why": str(error)})
            await asyncio.sleep(_SAMPLE_SECONDS if self._before else _INITIAL_DELAY)

    @property
    def now(self) -> float:
        return self._wall()

    @property
    def latest(self) -> Sample:
        """Return the latest sample, empty before the first. Raises Unsupported if the provider has no usage data."""
        if not self._provider.features.stats:
            raise Unsupported(f"Provider {self._provider.name} does not measure the usage of containers.")
        return self._after or Sample(self._wall(), {})

    @property
    def window(self) -> float | None:
        """Return the seconds between the two latest samples. Returns None if there are fewer than two."""
        return self._after.at - self._before.at if self._before and self._after else None

    def rates(self) -> dict[RunId, Rate]:
        return rates(self._before, self._after) if self._before and self._after else {}

    async def _sample(self) -> None:
        usage = await self._provider.usage()
        last = self._after or Sample(self._wall(), {})
        ended = sum(used.cpu_seconds for run, used in last.usage.items() if run not in usage)
        self._before, self._after = self._after, Sample(self._wall(), usage, last.ended + ended)
