"""Retries of transient failures, until there was no progress for some seconds."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from skysail.runtimes.fetch.errors import MayPass

T = TypeVar("T")
_FIRST = 0.5
_LONGEST = 5.0


class Patience:
    """Retry budget of one task. `sleep` and `clock` are the event loop's."""

    def __init__(
        self,
        *,
        seconds: float,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        rng: random.Random,
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._sleep = sleep
        self._rng = rng
        self.went_forward()

    def went_forward(self) -> None:
        self._since = self._clock()
        self._failures = 0

    async def bear(self, error: MayPass) -> None:
        """Wait before the next attempt, longer each time. Raises the error if there was no progress for too long."""
        longest = min(_LONGEST, _FIRST * 2.0**self._failures)
        self._failures += 1
        wait = self._rng.uniform(longest / 2, longest)
        if self._clock() + wait - self._since > self._seconds:
            raise error
        await self._sleep(wait)

    async def insist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await attempt()
            except MayPass as error:
                await self.bear(error)
