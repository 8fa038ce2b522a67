from __future__ import annotations

import asyncio

import pytest

from skysail.cloud.errors import Throttled
from skysail.cloud.runpod.rate_budget import DEFERRABLE, NORMAL, URGENT, RateBudget


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_last_requests_of_a_window_are_kept_for_urgent_ones():
    clock = Clock()
    budget = RateBudget(clock)
    budget.observe('"minute";r=2;t=30, "hour";r=100;t=1000')
    with pytest.raises(Throttled, match="quota") as caught:
        await budget.acquire(NORMAL)
    assert caught.value.retry_after == 30
    await budget.acquire(URGENT)
    await budget.acquire(URGENT)
    with pytest.raises(Throttled):
        await budget.acquire(URGENT)
    clock.now = 30.0
    await budget.acquire(NORMAL)


async def test_deferrable_request_waits_for_the_next_window(monkeypatch):
    clock, slept = Clock(), []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.now += seconds

    monkeypatch.setattr(asyncio, "sleep", sleep)
    budget = RateBudget(clock)
    budget.observe('"minute";r=10;t=12')
    await budget.acquire(DEFERRABLE)
    assert slept == [12.0]


async def test_requests_that_waited_are_not_all_sent_when_the_next_window_starts(monkeypatch):
    clock, slept = Clock(), []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.now += seconds

    monkeypatch.setattr(asyncio, "sleep", sleep)
    budget = RateBudget(clock)
    budget.observe('"minute";r=0;t=12', '"minute";q=60;w=60')
    for _ in range(100):
        await budget.acquire(DEFERRABLE)
    assert slept == [12.0, 60.0, 60.0], "45 of 60 requests of each window; the others are kept for urgent ones"
    await budget.acquire(URGENT)


@pytest.mark.parametrize("quota", [1, 2, 10, DEFERRABLE])
async def test_rate_budget_small_quota_leaves_requests_to_deferrable_ones(monkeypatch, quota):
    clock, slept = Clock(), []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.now += seconds
        assert len(slept) < 10, "a deferrable request waits for ever"

    monkeypatch.setattr(asyncio, "sleep", sleep)
    budget = RateBudget(clock)
    budget.observe('"second";r=0;t=1', f'"second";q={quota};w=1')
    for _ in range(quota - quota // 2):
        await budget.acquire(DEFERRABLE)
    assert slept == [1.0]
    for _ in range(quota // 2):
        await budget.acquire(URGENT)
    await budget.acquire(DEFERRABLE)
    assert slept == [1.0, 1.0], "what was left is kept for urgent requests"


@pytest.mark.parametrize(
    ("header", "seconds"), [("7", 7.0), ("", 10.0), ("-1", 10.0), ("soon", 10.0), ("9" * 9, 3600.0)]
)
async def test_retry_after_blocks_every_request(header, seconds):
    clock = Clock()
    budget = RateBudget(clock)
    assert budget.throttled(header) == seconds
    with pytest.raises(Throttled):
        await budget.acquire(URGENT)
    clock.now = seconds
    await budget.acquire(URGENT)


@pytest.mark.parametrize("header", ["", "garbage", '"minute";r=x;t=1', '"minute"', "\x00" * 100])
async def test_malformed_header_changes_nothing(header):
    budget = RateBudget(Clock())
    budget.observe(header, header)
    await budget.acquire(DEFERRABLE)
