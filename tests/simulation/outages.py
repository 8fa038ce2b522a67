"""Trouble that lasts: it befalls every process of a run, and no retry of a second helps against it."""

from __future__ import annotations

import asyncio
from datetime import timedelta

_HOUR = 3600.0
_SECONDS = {"API server down": 60.0, "cloud down": _HOUR, "storm of 429": 300.0, "listings lie": 600.0}
# Forward by more than an instance may live.
_JUMPS = {"clock forward": timedelta(hours=25), "clock back": timedelta(hours=-1)}
LASTING = (*_SECONDS, *_JUMPS)


def seconds(what: str) -> float:
    """How long it lasts."""
    return _SECONDS.get(what, 0.0)


class Outages:
    """Of one run. `jump` is by how much the wall clocks of our machines are wrong; a cloud has its own clock."""

    def __init__(self) -> None:
        self.jump = timedelta()
        self._ends: dict[str, float] = {}

    def begin(self, what: str) -> None:
        if what in _JUMPS:
            self.jump = _JUMPS[what]
        else:
            self._ends[what] = asyncio.get_running_loop().time() + _SECONDS[what]

    def lasts(self, what: str) -> bool:
        return what in self._ends and asyncio.get_running_loop().time() < self._ends[what]

    @property
    def is_bad(self) -> bool:
        return any(self.lasts(what) for what in self._ends)
