"""CPU and memory usage of processes from /proc, by pid namespace: each container has its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from skysail.cloud.provider import Usage

_TICK = os.sysconf("SC_CLK_TCK")
_KIBIBYTE = 1024
_COUNTED = ("RssAnon:", "RssShmem:")


def by_namespace(proc: Path = Path("/proc")) -> dict[int, Usage]:
    """Return the usage by pid namespace. Blocking.

    The CPU time of ended children is part of the parent's that waited for them.
    """
    found: dict[int, Usage] = {}
    for folder in _processes(proc):
        try:
            namespace = (folder / "ns" / "pid").stat().st_ino
            cpu = _cpu_seconds((folder / "stat").read_text())
            memory = _memory((folder / "status").read_text())
        except OSError:
            continue  # the process has ended, or is not ours
        so_far = found.get(namespace, Usage(cpu_seconds=0.0, memory=0))
        found[namespace] = Usage(cpu_seconds=so_far.cpu_seconds + cpu, memory=so_far.memory + memory)
    return found


def _processes(proc: Path) -> Iterator[Path]:
    return (folder for folder in proc.iterdir() if folder.name.isdigit())


def _cpu_seconds(stat: str) -> float:
    """Return the CPU time. The process name in parentheses may contain blanks and parentheses."""
    fields = stat.rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15]) / _TICK


def _memory(status: str) -> int:
    """Return the bytes that only this process keeps in memory, and shared memory. Pages of files are not counted:

    the kernel can drop them, and processes that use the same libraries share them.
    """
    rows = (line.split() for line in status.splitlines() if line.startswith(_COUNTED))
    return sum(int(row[1]) for row in rows) * _KIBIBYTE
