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
    os.sched_setaffinity(0, cores(place))


def cores(place: int) -> set[int]:
    """The one core for this place, or all where there are too few."""
    all_cores = sorted(os.sched_getaffinity(0))
    return {all_cores[place]} if len(all_cores) > CLIENT_CORE else set(all_cores)


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


def tree(pid: int) -> list[int]:
    """A process, and everything that it has started and that still runs."""
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").glob("*"):
            with contextlib.suppress(OSError):  # ended meanwhile
                found += map(int, (task / "children").read_text().split())
    return found


def cpu_of_tree(pid: int) -> float:
    """Processor seconds of all of them, and of those among them that have ended."""
    ticks = 0
    for one in tree(pid):
        with contextlib.suppress(OSError):  # ended meanwhile
            ticks += sum(map(int, Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_of_tree(pid: int) -> float:
    """In MB; pages that several share count for each."""
    total = 0.0
    for one in tree(pid):
        with contextlib.suppress(OSError):  # ended meanwhile
            total += memory(one)
    return total


def memory(pid: int | str = "self") -> float:
    """What a process has in memory now, in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / _MEGABYTE


def highest_memory(used: resource.struct_rusage | None = None) -> float:
    """The most that this process, or one that ended, ever had in memory, in MB."""
    used = used or resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_maxrss * 1024 / _MEGABYTE
