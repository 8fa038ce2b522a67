"""What runs use: sampled at a steady pace, so that everybody who asks is told the same, and rates are known.

A counter alone says little: how much is used *now* is the difference between two samples. The first two are taken close
together, so that a node that was restarted can answer soon; before that it says that it does not know.
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
    """`ended` is what runs used that are no longer there: the node's own counter must not fall when one ends."""

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
    """What a run uses: cores on average since the sample before, and bytes now."""

    cores: float
    memory: int


def rates(previous: Sample, after: Sample) -> dict[RunId, Rate]:
    """Of the runs that are in both: of a younger one nobody knows yet how much it uses."""
    seconds = after.at - previous.at
    return {
        run: Rate(max(0.0, used.cpu_seconds - previous.usage[run].cpu_seconds) / seconds, used.memory)
        for run, used in after.usage.items()
        if run in previous.usage and seconds > 0
    }


class UsageSampler:
    """Samples while `run` runs."""

    def __init__(self, provider: Provider, wall: Callable[[], float]) -> None:
        self._provider = provider
        self._wall = wall
        self.started = wall()
        self._before: Sample | None = None
        self._after: Sample | None = None

    async def run(self) -> None:
        """Until cancelled. Returns at once where the provider measures nothing."""
        while self._provider.features.stats:
            try:
                await self._sample()
            except ProviderError as error:
                log.info("usage not known", extra={"why": str(error)})
            await asyncio.sleep(_SAMPLE_SECONDS if self._before else _INITIAL_DELAY)

    @property
    def latest(self) -> Sample:
        """Empty before the first one. Raises Unsupported where the provider measures nothing."""
        if not self._provider.features.stats:
            raise Unsupported(f"What runs at {self._provider.name} is not measured there.")
        return self._after or Sample(self._wall(), {})

    @property
    def window(self) -> float | None:
        """Seconds between the two latest samples; None while there are no two."""
        return self._after.at - self._before.at if self._before and self._after else None

    def rates(self) -> dict[RunId, Rate]:
        return rates(self._before, self._after) if self._before and self._after else {}

    async def _sample(self) -> None:
        usage = await self._provider.usage()
        last = self._after or Sample(self._wall(), {})
        gone = sum(used.cpu_seconds for run, used in last.usage.items() if run not in usage)
        self._before, self._after = self._after, Sample(self._wall(), usage, last.ended + gone)
