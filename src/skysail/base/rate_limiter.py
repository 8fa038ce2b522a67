"""Token bucket for work that can wait, such as status details.

A quiet operator writes at once. When hundreds of objects start together, the API server is the bottleneck, and progress
details would only delay the objects themselves.
"""

from __future__ import annotations


class Ration:
    def __init__(self, *, a_second: float, at_once: float) -> None:
        self._a_second = a_second
        self._at_once = at_once
        self._left = at_once
        self._counted = 0.0

    def take(self, now: float) -> bool:
        """Take a token if there is one. `now` is in seconds of a monotonic clock."""
        self._left = min(self._at_once, self._left + (now - self._counted) * self._a_second)
        self._counted = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
