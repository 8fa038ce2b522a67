"""Estimate of the model's run time from previous runs."""

from __future__ import annotations

import math
from collections.abc import Hashable

# A run that takes this many times its limit, in CPU time, does so because of its values.
_SURPRISE = 10


class LatencyEstimator:
    """Run time estimate. `quick` is the maximum for a run on the event loop, after `habit` quick runs in a row.

    One run that was expected to be quick and was not shows that the time depends on the values: then nothing is
    predicted for this model any more. A busy machine shows in wall clock time only, not in CPU time, and proves
    nothing.
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
        """Return whether the next run is expected to be quick. Called before each run that `ran` reports."""
        self._foretold = (
            kind is not None and kind == self._kind and self._seconds * max(1.0, rows / self._rows) < self._quick
        )
        return self._foretold and self._in_a_row >= self._habit and not self._deceives

    def ran(self, kind: Hashable, rows: int, seconds: float, processor: float, *, is_full: bool) -> None:
        """Record a run, with wall clock and CPU seconds. `is_full`: the queue held more than fitted into the batch."""
        if seconds < self._quick:
            self._in_a_row = self._in_a_row + 1 if kind == self._kind else 1
        elif self._foretold and processor >= _SURPRISE * self._quick:
            self._deceives = self._deceives or self._in_a_row >= self._habit
            self._in_a_row = 0
        self._kind, self._rows, self._seconds = kind, rows, seconds
        # A small batch gives only an upper bound per row, because more rows might have taken no longer.
        if is_full or seconds < self._per_row * rows:
            self._per_row = seconds / rows

    def wait(self, rows: int) -> float:
        """Return the estimated seconds for these rows; 0 until a full batch was seen."""
        return rows * self._per_row

    def fitting(self, seconds: float) -> float:
        """Return the number of rows for this time, by the last run. Larger batches take less time per row."""
        return max(1.0, seconds / self._seconds * self._rows) if self._seconds else math.inf
