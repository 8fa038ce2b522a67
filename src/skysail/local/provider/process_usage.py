"""What processes use, told by /proc, summed up by pid namespace: each box has one of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from skysail.cloud.provider import Usage

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def by_namespace(proc: Path = Path("/proc")) -> dict[int, Usage]:
    """Blocking. The time of ended children is in that of the parent who waited for them."""
    found: dict[int, Usage] = {}
    for folder in _processes(proc):
        try:
            namespace = (folder / "ns" / "pid").stat().st_ino
            cpu, memory = _used((folder / "stat").read_text())
        except OSError:
            continue  # it ended while we looked, or is none of ours
        so_far = found.get(namespace, Usage(cpu_seconds=0.0, memory=0))
        found[namespace] = Usage(cpu_seconds=so_far.cpu_seconds + cpu, memory=so_far.memory + memory)
    return found


def _processes(proc: Path) -> Iterator[Path]:
    return (folder for folder in proc.iterdir() if folder.name.isdigit())


def _used(stat: str) -> tuple[float, int]:
    """Seconds and bytes. The name in brackets may hold blanks and brackets of its own."""
    fields = stat.rpartition(")")[2].split()
    ticks = sum(int(field) for field in fields[11:15])
    return ticks / _TICK, int(fields[21]) * _PAGE
