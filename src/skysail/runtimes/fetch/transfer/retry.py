"""Retries of transient failures, until there was no progress for some seconds."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from skysail.runtimes.fetch.errors import TransientError

T = TypeVar("T")
_FIRST = 0.5
_MAX_DELAY = 5.0


class RetryPolicy:
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
        self.reset()

    def reset(self) -> None:
        self._since = self._clock()
        self._failures = 0

    async def wait(self, error: TransientError) -> None:
        """Wait before the next attempt, longer each time. Raises the error if there was no progress for too long."""
        longest = min(_MAX_DELAY, _FIRST * 2.0**self._failures)
        self._failures += 1
        wait = self._rng.uniform(longest / 2, longest)
        if self._clock() + wait - self._since > self._seconds:
            raise error
        await self._sleep(wait)

    async def run(self, attempt: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await attempt()
            except TransientError as error:
                await self.wait(error)
