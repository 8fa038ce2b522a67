"""How long to wait before trying again: doubling, with jitter, bounded above and below."""

from __future__ import annotations

import random


class Backoff:
    """One sequence of failures. `reset` after a success."""

    def __init__(self, *, first: float, longest: float, rng: random.Random) -> None:
        self._first = first
        self._longest = longest
        self._rng = rng
        self.failures = 0

    def next(self) -> float:
        """Full jitter above a floor: many callers that failed together do not come back together, nor at once."""
        delay = delay_after(self.failures, first=self._first, longest=self._longest)
        self.failures += 1
        return self._rng.uniform(self._first / 2, delay)

    def reset(self) -> None:
        self.failures = 0


def delay_after(failures: int, *, first: float, longest: float) -> float:
    """The upper end of the wait after so many failures before this one."""
    return min(longest, first * 2.0 ** min(failures, 32))
