"""Exponential backoff with jitter."""

from __future__ import annotations

import random


class Backoff:
    """Delays for one sequence of failures. Call `reset` after a success."""

    def __init__(self, *, first: float, longest: float, rng: random.Random) -> None:
        self._first = first
        self._longest = longest
        self._rng = rng
        self.failures = 0

    def next(self) -> float:
        """Return the next delay, with jitter, so that callers that failed together do not retry together."""
        delay = delay_bound(self.failures, first=self._first, longest=self._longest)
        self.failures += 1
        return self._rng.uniform(self._first / 2, delay)

    def reset(self) -> None:
        self.failures = 0


def delay_bound(failures: int, *, first: float, longest: float) -> float:
    """Return the upper bound of the delay after this many earlier failures."""
    return min(longest, first * 2.0 ** min(failures, 32))
