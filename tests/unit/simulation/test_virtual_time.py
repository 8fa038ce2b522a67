"""The loop of the simulation: time jumps, order stays, and a standstill is reported."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.virtual_time import Deadlock, run


def test_a_day_passes_at_once_and_to_the_second() -> None:
    async def main() -> float:
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time()

    assert run(main()) == pytest.approx(86_400)


def test_timers_fire_in_their_order() -> None:
    async def main() -> list[int]:
        fired: list[int] = []

        async def fire(seconds: int) -> None:
            await asyncio.sleep(seconds)
            fired.append(seconds)

        await asyncio.gather(*(fire(seconds) for seconds in (30, 10, 20)))
        return fired

    assert run(main()) == [10, 20, 30]


def test_a_timeout_ends_a_wait() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(75):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run(main()) == pytest.approx(75)


def test_time_stands_still_while_something_is_ready() -> None:
    async def main() -> float:
        for _ in range(1000):
            await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    assert run(main()) == 0


def test_a_standstill_names_the_tasks_that_wait() -> None:
    async def stuck() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match=r"stuck\) at .*test_virtual_time\.py"):
        run(stuck())
