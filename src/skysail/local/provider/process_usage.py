"""CPU and memory usage of processes from /proc, by pid namespace: each container has its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from skysail.cloud.provider import Usage

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def by_namespace(proc: Path = Path("/proc")) -> dict[int, Usage]:
    """Return the usage by pid namespace. Blocking.

    The CPU time of ended children is part of the parent's that waited for them.
    """
    found: dict[int, Usage] = {}
    for folder in _processes(proc):
        try:
            namespace = (folder / "ns" / "pid").stat().st_ino
            cpu, memory = _used((folder / "stat").read_text())
        except OSError:
            continue  # the process has ended, or is not ours
        so_far = found.get(namespace, Usage(cpu_seconds=0.0, memory=0))
        found[namespace] = Usage(cpu_seconds=so_far.cpu_seconds + cpu, memory=so_far.memory + memory)
    return found


def _processes(proc: Path) -> Iterator[Path]:
    return (folder for folder in proc.iterdir() if folder.name.isdigit())


def _used(stat: str) -> tuple[float, int]:
    """Return CPU seconds and bytes. The process name in parentheses may contain blanks and parentheses."""
    fields = stat.rpartition(")")[2].split()
    ticks = sum(int(field) for field in fields[11:15])
    return ticks / _TICK, int(fields[21]) * _PAGE
