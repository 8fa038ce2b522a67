"""The processes of a run: which core each has, and what it used."""

from __future__ import annotations

import contextlib
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


def find(argument: str) -> int:
    """The process that was started with this argument."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile
            if argument.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                return int(folder.name)
    raise LookupError(f"no process has the argument {argument}")


def cpu_of(pid: int) -> float:
    """Processor seconds that another process has used."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def memory(pid: int | str = "self") -> float:
    """What a process has in memory now, in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / _MEGABYTE


def highest_memory(used: resource.struct_rusage | None = None) -> float:
    """The most that this process, or one that ended, ever had in memory, in MB."""
    used = used or resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_maxrss * 1024 / _MEGABYTE
