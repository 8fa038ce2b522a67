"""How long the model takes, by what it took before."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import NamedTuple

# What takes so many times as long as it should, by the processor's own count, does so because of its values.
_SURPRISE = 10


class Took(NamedTuple):
    """What a batch took: seconds by the clock, and of the processor for its thread alone."""

    seconds: float
    processor: float


class _Run(NamedTuple):
    kind: Hashable
    rows: int
    seconds: float


class Speed:
    """`quick` is what a run may take at most on the event loop, after `habit` quick ones in a row.

    One run that was to be quick and was not shows that the time follows from the values: then nothing is foretold of
    this model any more. A busy machine shows in the clock and not in the processor's count, and proves nothing.
    """

    def __init__(self, quick: float, habit: int) -> None:
        self._quick = quick
        self._habit = habit
        self._last: _Run | None = None
        self._in_a_row = 0
        self._foretold = False
        self._deceives = False
        self._per_row = 0.0

    def is_quick(self, kind: Hashable, rows: int) -> bool:
        """Asked before each run of which `ran` tells."""
        last = self._last
        self._foretold = (
            last is not None
            and kind is not None
            and last.kind == kind
            and last.seconds * max(1.0, rows / last.rows) < self._quick
        )
        return self._foretold and self._in_a_row >= self._habit and not self._deceives

    def ran(self, kind: Hashable, rows: int, took: Took, *, is_full: bool) -> None:
        """`is_full`: there was more to do than went along."""
        seconds = max(took.seconds, 1e-6)
        if seconds < self._quick:
            is_same = self._last is not None and self._last.kind == kind
            self._in_a_row = self._in_a_row + 1 if is_same else 1
        elif self._foretold and took.processor >= self._quick:
            is_habit = self._in_a_row >= self._habit
            self._deceives = self._deceives or (is_habit and took.processor >= _SURPRISE * self._quick)
            self._in_a_row = 0
        self._last = _Run(kind, rows, seconds)
        # A few rows alone tell how long they take at most, and not how many would have gone along in that time.
        if is_full or seconds < self._per_row * rows:
            self._per_row = seconds / rows

    def wait(self, rows: int) -> float:
        """Seconds until so many are done, as soon as there was ever more to do than could be done at once; 0 before."""
        return rows * self._per_row

    def fitting(self, seconds: float) -> int:
        """Rows that take no longer, if each takes as long as those of the last run. Many together take less."""
        if self._last is None or math.isinf(seconds):
            return 2**62
        return max(1, int(seconds / self._last.seconds * self._last.rows))
