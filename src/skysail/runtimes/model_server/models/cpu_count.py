"""Number of CPUs of this container. More threads than CPUs would slow each other down."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def usable_cpus(root: Path = _CGROUP, cores: int | None = None) -> int:
    cores = cores or len(os.sched_getaffinity(0))
    quota = _quota(root)
    return max(1, min(cores, math.ceil(quota))) if quota else cores


def _quota(root: Path) -> float | None:
    """Return the CPU limit, from either cgroup version, or None if there is none."""
    try:
        limit, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        limit, period = _number(root / "cpu/cpu.cfs_quota_us"), _number(root / "cpu/cpu.cfs_period_us")
    return int(limit) / int(period) if limit.isdigit() and period.isdigit() and int(period) else None


def _number(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
