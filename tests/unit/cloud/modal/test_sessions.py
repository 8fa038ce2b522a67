from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from skysail.cloud.errors import OutcomeUnknown
from skysail.cloud.modal.sessions import SandboxSessions
from tests.support import virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from skysail.cloud.provider import Output


class Relay:
    """A relay that never connects."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.calls: list[str] = []

    async def output(self) -> AsyncIterator[Output]:
        self.started.set()
        await asyncio.Event().wait()
        yield  # type: ignore[misc]

    async def kill(self) -> None:
        self.calls.append("kill")

    async def close(self) -> None:
        self.calls.append("close")


class Sessions(SandboxSessions):
    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    async def exec(self, *_: Any, **__: Any) -> Any:
        return self._relay


def test_a_relay_that_does_not_connect_is_killed():
    async def test() -> None:
        relay = Relay()
        with pytest.raises(OutcomeUnknown):
            await Sessions(relay).dial("sb-1", 80)
        assert relay.calls == ["kill", "close"]

    virtual_time.run(test())


def test_a_relay_is_killed_if_its_caller_is_cancelled():
    async def test() -> None:
        relay = Relay()
        dialling = asyncio.ensure_future(Sessions(relay).dial("sb-1", 80))
        await relay.started.wait()
        dialling.cancel()
        await asyncio.gather(dialling, return_exceptions=True)
        assert dialling.cancelled()
        assert relay.calls == ["kill", "close"]

    virtual_time.run(test())
