"""Token bucket for work that can wait, such as status details.

A quiet operator writes at once. When hundreds of objects start together, the API server is the bottleneck, and progress
details would only delay the objects themselves.
"""

from __future__ import annotations


class Ration:
    def __init__(self, *, rate: float, burst: float) -> None:
        self._a_second = rate
        self._at_once = burst
        self._left = burst
        self._counted = 0.0

    def try_acquire(self, now: float) -> bool:
        """Take a token if there is one. `now` is in seconds of a monotonic clock."""
        self._left = min(self._at_once, self._left + (now - self._counted) * self._a_second)
        self._counted = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
