"""How long the model takes, by what it took before."""

from __future__ import annotations

import math
from collections.abc import Hashable

# What takes so many times as long as it may, by the processor's own count, does so because of its values.
_SURPRISE = 10


class Speed:
    """`quick` is what a run may take at most on the event loop, after `habit` quick ones in a row.

    One run that was to be quick and was not shows that the time follows from the values: then nothing is foretold of
    this model any more. A busy machine shows in the clock and not in the processor's count, and proves nothing.
    """

    def __init__(self, quick: float, habit: int) -> None:
        self._quick = quick
        self._habit = habit
        self._kind: Hashable = None
        self._rows = 1
        self._seconds = 0.0
        self._in_a_row = 0
        self._foretold = False
        self._deceives = False
        self._per_row = 0.0

    def is_quick(self, kind: Hashable, rows: int) -> bool:
        """Asked before each run of which `ran` tells."""
        self._foretold = (
            kind is not None and kind == self._kind and self._seconds * max(1.0, rows / self._rows) < self._quick
        )
        return self._foretold and self._in_a_row >= self._habit and not self._deceives

    def ran(self, kind: Hashable, rows: int, seconds: float, processor: float, *, is_full: bool) -> None:
        """By the clock, and by what the processor did at most. `is_full`: there was more to do than went along."""
        if seconds < self._quick:
            self._in_a_row = self._in_a_row + 1 if kind == self._kind else 1
        elif self._foretold and processor >= _SURPRISE * self._quick:
            self._deceives = self._deceives or self._in_a_row >= self._habit
            self._in_a_row = 0
        self._kind, self._rows, self._seconds = kind, rows, seconds
        # A few rows alone tell how long they take at most, and not how many would have gone along in that time.
        if is_full or seconds < self._per_row * rows:
            self._per_row = seconds / rows

    def wait(self, rows: int) -> float:
        """Seconds until so many are done, as soon as there was ever more to do than could be done at once; 0 before."""
        return rows * self._per_row

    def fitting(self, seconds: float) -> float:
        """Rows that take no longer, if each takes as long as those of the last run. Many together take less."""
        return max(1.0, seconds / self._seconds * self._rows) if self._seconds else math.inf
