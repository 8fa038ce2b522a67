"""A sample of the crash points, so that a stage fits into its time.

`SKYSAIL_CRASH_POINTS=3/7` takes the third of every seven points. Without the variable every point is taken.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

_FIRST, _STEP = map(int, os.environ.get("SKYSAIL_CRASH_POINTS", "1/1").split("/"))
IS_WHOLE = _STEP == 1


def sample(points: Sequence[T]) -> Sequence[T]:
    return points[_FIRST - 1 :: _STEP]


def numbers() -> Iterator[int]:
    """Count the sampled points from 1 on, without an end."""
    return itertools.count(_FIRST, _STEP)
