"""Wall clock, and the clock for leases. Other durations use the event loop's clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def now() -> datetime:
    return datetime.now(UTC)


def boottime() -> float:
    """Return monotonic seconds that advance while the machine sleeps: a lease must expire on a closed laptop."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
