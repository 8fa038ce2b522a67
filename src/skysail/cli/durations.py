"""How long ago, in one short word."""

from __future__ import annotations

from datetime import datetime


def age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"


def since(time: str, now: datetime) -> str:
    """`time` as Kubernetes writes it."""
    return age((now - datetime.fromisoformat(time)).total_seconds())
