"""Moments as the API writes them. Reads no clock, so that a decision may use it."""

from __future__ import annotations

from datetime import UTC, datetime


def timestamp(moment: datetime) -> str:
    """RFC 3339 in seconds, as metav1.Time."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def from_seconds(seconds: float) -> datetime:
    """A moment that is told in seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC)
