"""Wall time, and the clock of leases. Other durations are measured by the event loop's clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def now() -> datetime:
    return datetime.now(UTC)


def steady() -> float:
    """Seconds that only go forward, and go on while the machine sleeps: a laptop that wakes up is hours behind."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
