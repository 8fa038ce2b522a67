"""A wake-up call for tasks that wait until a condition of some state holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Changes:
    """Wakes every waiting task at each change."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def until(self, holds: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait until the condition holds. Returns False if it does not hold within `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                while not holds():
                    await self._event.wait()
        except TimeoutError:
            return False
        return True
