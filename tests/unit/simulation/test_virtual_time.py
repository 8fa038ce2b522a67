"""The loop of the simulation: time jumps, order stays, and a standstill is reported."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.virtual_time import Deadlock, Freeze, run, unfrozen


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


def test_what_is_frozen_goes_on_later_and_all_else_meanwhile() -> None:
    async def main() -> list[tuple[str, float]]:
        loop, freeze, told = asyncio.get_running_loop(), Freeze(), []

        async def wait(name: str) -> None:
            await asyncio.sleep(10)
            told.append((name, loop.time()))

        async def ask() -> None:
            with unfrozen():
                await wait("asked")

        frozen = [loop.create_task(work, context=freeze.context()) for work in (wait("frozen"), ask())]
        free = loop.create_task(wait("free"))
        freeze.begin()
        loop.call_later(300, freeze.end)
        await asyncio.gather(*frozen, free)
        return told

    assert run(main()) == [("asked", 10), ("free", 10), ("frozen", 300)]


def test_a_timer_that_was_cancelled_in_a_freeze_never_goes_off() -> None:
    async def main() -> list[str]:
        loop, freeze, told = asyncio.get_running_loop(), Freeze(), list[str]()
        timer = freeze.context().run(loop.call_later, 10, told.append, "late")
        freeze.begin()
        await asyncio.sleep(20)
        timer.cancel()
        freeze.end()
        await asyncio.sleep(20)
        return told

    assert run(main()) == []
