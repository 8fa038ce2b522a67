"""Samples, rates, and counters that do not fall."""

from __future__ import annotations

import asyncio

import pytest

from skysail.cloud.errors import OutcomeUnknown, Unsupported
from skysail.cloud.provider import Features, RunId, Usage
from skysail.node.usage_sampler import Rate, Sample, UsageSampler, rates
from tests.support import virtual_time

OLD, NEW = RunId("u", "old", 0), RunId("u", "new", 0)


class Measured:
    """The part of a provider that measures."""

    name = "measured"

    def __init__(self, *, stats: bool = True) -> None:
        self.features = Features(stats=stats)
        self.used: dict[RunId, Usage] = {}
        self.now = 0.0
        self.faults: list[Exception] = []

    async def usage(self) -> dict[RunId, Usage]:
        if self.faults:
            raise self.faults.pop()
        return self.used


def used(seconds: float, memory: int = 1024) -> Usage:
    return Usage(cpu_seconds=seconds, memory=memory)


def test_a_rate_needs_two_samples():
    before = Sample(100.0, {OLD: used(1.0)})
    after = Sample(110.0, {OLD: used(6.0, 2048), NEW: used(9.0)})
    assert rates(before, after) == {OLD: Rate(0.5, 2048)}


def test_samples_of_one_moment_say_nothing():
    assert rates(Sample(1.0, {OLD: used(1)}), Sample(1.0, {OLD: used(2)})) == {}


def test_rates_are_known_two_seconds_after_a_restart():
    async def play() -> None:
        provider = Measured()
        clock = asyncio.get_running_loop().time
        usage_sampler = UsageSampler(provider, clock)
        provider.used = {OLD: used(100.0)}
        task = asyncio.create_task(usage_sampler.run())
        await asyncio.sleep(0.5)
        assert (usage_sampler.window, usage_sampler.rates()) == (None, {})
        provider.used = {OLD: used(100.25)}
        await asyncio.sleep(1.5)
        assert (usage_sampler.window, usage_sampler.rates()) == (1.0, {OLD: Rate(0.25, 1024)})
        provider.faults = [OutcomeUnknown("no answer")]
        await asyncio.sleep(5)
        assert usage_sampler.rates() == {OLD: Rate(0.25, 1024)}
        task.cancel()
        await asyncio.wait([task])

    virtual_time.run(play())


async def test_the_nodes_counter_does_not_fall_when_a_run_ends():
    provider = Measured()
    usage_sampler = UsageSampler(provider, lambda: 1.0)
    totals = []
    for usage in ({OLD: used(5)}, {OLD: used(6), NEW: used(1)}, {NEW: used(2)}, {}):
        provider.used = usage
        await usage_sampler._sample()
        totals.append(usage_sampler.latest.total.cpu_seconds)
    assert totals == [5, 7, 8, 8]


async def test_where_nothing_is_measured_that_is_said():
    usage_sampler = UsageSampler(Measured(stats=False), lambda: 1.0)
    await usage_sampler.run()
    with pytest.raises(Unsupported, match="does not measure"):
        _ = usage_sampler.latest
