"""What a process of claims needs from outside."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime

import msgspec


class Surroundings(msgspec.Struct, frozen=True):
    """`now` is the time in statuses, `clock` only goes forward."""

    now: Callable[[], datetime]
    clock: Callable[[], float]
    rng: random.Random
