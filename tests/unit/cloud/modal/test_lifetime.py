from __future__ import annotations

import asyncio

import pytest

from skysail.cloud.errors import Gone
from skysail.cloud.modal import lifetime
from tests.support import virtual_time


class Sandbox:
    """A sandbox that ends at a time of the loop. Counts the lookups."""

    def __init__(self, ends: float) -> None:
        self._ends = ends
        self.lookups = 0

    async def has_ended(self) -> bool:
        self.lookups += 1
        return asyncio.get_running_loop().time() >= self._ends


def test_call_that_returns_late_is_awaited_as_long_as_the_sandbox_runs():
    async def test() -> None:
        sandbox = Sandbox(ends=1000.0)
        assert await lifetime.while_running(asyncio.sleep(100.0, "code"), sandbox.has_ended) == "code"
        assert sandbox.lookups == 3

    virtual_time.run(test())


def test_call_that_never_returns_ends_with_the_sandbox():
    async def test() -> None:
        pending = asyncio.get_running_loop().create_future()
        began = asyncio.get_running_loop().time()
        with pytest.raises(Gone):
            await lifetime.while_running(pending, Sandbox(ends=began + 45.0).has_ended)
        assert pending.cancelled()
        assert asyncio.get_running_loop().time() - began == pytest.approx(70.0)

    virtual_time.run(test())


def test_call_that_returns_after_the_end_of_the_sandbox_has_its_result():
    async def test() -> None:
        assert await lifetime.while_running(asyncio.sleep(65.0, 7), Sandbox(ends=50.0).has_ended) == 7

    virtual_time.run(test())


def test_cancelled_caller_cancels_the_call():
    async def test() -> None:
        pending = asyncio.get_running_loop().create_future()
        waiting = asyncio.ensure_future(lifetime.while_running(pending, Sandbox(ends=1000.0).has_ended))
        await asyncio.sleep(1.0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert (waiting.cancelled(), pending.cancelled()) == (True, True)

    virtual_time.run(test())
