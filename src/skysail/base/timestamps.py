"""Timestamps in the format of the Kubernetes API. Pure: reads no clock."""

from __future__ import annotations

from datetime import UTC, datetime


def timestamp(moment: datetime) -> str:
    """Format as RFC 3339 with seconds, as metav1.Time."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def from_seconds(seconds: float) -> datetime:
    """Convert seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC)
