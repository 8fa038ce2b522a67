"""The processes of a run: which core each has, and what it used."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import Self

import msgspec

SERVER_CORE = 0
CLIENT_CORE = 1

_MEGABYTE = 1e6


def pin(place: int) -> None:
    """Keep this process on one core, where there are enough for everybody to have an own one."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > CLIENT_CORE:
        os.sched_setaffinity(0, {cores[place]})


class Cost(msgspec.Struct, frozen=True):
    """What a stretch of work took: time on the clock, and time of a processor."""

    seconds: float
    cpu: float


class Moment(msgspec.Struct, frozen=True):
    """Where this process is: the clock, and the processor time that it has used."""

    at: float
    cpu: float

    @classmethod
    def now(cls) -> Self:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return cls(time.monotonic(), used.ru_utime + used.ru_stime)

    def since(self, earlier: Moment) -> Cost:
        return Cost(self.at - earlier.at, self.cpu - earlier.cpu)


def memory() -> float:
    """What this process has in memory now, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / _MEGABYTE


def highest_memory(used: resource.struct_rusage | None = None) -> float:
    """The most that this process, or one that ended, ever had in memory, in MB."""
    used = used or resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_maxrss * 1024 / _MEGABYTE
