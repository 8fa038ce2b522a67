"""Calls of the SDK that may take as long as their sandbox runs. They have no deadline, but end with the sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from skysail.cloud.errors import Gone

# A call that is silent for this long is checked: a connection may hang without an error.
_SILENCE_SECONDS = 30.0
# A listing of this age answers for a sandbox: hundreds of silent calls must not look up one each.
LISTING_SECONDS = 20.0
# After the end of the sandbox, a silent call gets this long.
_LAST_SECONDS = 10.0

T = TypeVar("T")


async def while_running(call: Awaitable[T], has_ended: Callable[[], Awaitable[bool]]) -> T:
    """Await a call until its sandbox, or its gang, has ended.

    Raises the SDK's error, or Gone if the sandbox has ended and the call still does not return.
    """
    pending = asyncio.ensure_future(call)
    try:
        while True:
            done, _ = await asyncio.wait({pending}, timeout=_SILENCE_SECONDS)
            if not done and await has_ended():
                done, _ = await asyncio.wait({pending}, timeout=_LAST_SECONDS)
                if not done:
                    raise Gone("The sandbox has ended, and a call to it did not return.")
            if done:
                return pending.result()
    finally:
        if not pending.done():
            pending.cancel()
            await asyncio.wait({pending}, timeout=_LAST_SECONDS)
