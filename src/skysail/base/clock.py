"""Wall time, as the API writes it, and the clock of leases. Other durations are measured by the event loop's clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def now() -> datetime:
    return datetime.now(UTC)


def steady() -> float:
    """Seconds that only go forward, and go on while the machine sleeps: a laptop that wakes up is hours behind."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def timestamp(moment: datetime) -> str:
    """RFC 3339 in seconds, as metav1.Time."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def from_seconds(seconds: float) -> datetime:
    """A moment that is told in seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC)
