"""Durations in one short word, such as 5m."""

from __future__ import annotations

from datetime import datetime


def age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"


def since(time: str, now: datetime) -> str:
    """Return the age of a Kubernetes timestamp."""
    return age((now - datetime.fromisoformat(time)).total_seconds())
