"""How much may be done that can wait: so many a second, and some more after a quiet time.

While little happens everything is done at once. When hundreds of objects come up together, the API server is what all
of them wait for, and a word on how far each has come would only make them come later.
"""

from __future__ import annotations


class Ration:
    def __init__(self, *, a_second: float, at_once: float) -> None:
        self._a_second = a_second
        self._at_once = at_once
        self._left = at_once
        self._counted = 0.0

    def take(self, now: float) -> bool:
        """Whether one more may be done. `now` is in seconds, of a clock that never goes back."""
        self._left = min(self._at_once, self._left + (now - self._counted) * self._a_second)
        self._counted = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
