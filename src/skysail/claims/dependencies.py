"""Clocks and random numbers, injected into everything in `claims`."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime

import msgspec


class ClaimDependencies(msgspec.Struct, frozen=True):
    """Injected dependencies: `now` is the wall clock for statuses, `clock` is monotonic."""

    now: Callable[[], datetime]
    clock: Callable[[], float]
    rng: random.Random
