"""Durations in one short word, such as 5m: written and read."""

from __future__ import annotations

import re
from datetime import datetime

from skysail.base.errors import UserError

_SECONDS = r"[0-9]+(?:\.[0-9]+)?"
_PART = rf"({_SECONDS})(ms|s|m|h)"
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class InvalidDuration(UserError):
    """A text that is no duration."""


def seconds(text: str) -> float:
    """Parse a duration: seconds such as `30`, or with units such as `5m` and `1h30m`. Raises InvalidDuration."""
    if re.fullmatch(_SECONDS, text):
        return float(text)
    if not re.fullmatch(f"({_PART})+", text):
        raise InvalidDuration(f"{text!r} is no duration: write seconds such as 30, or a time such as 5m.")
    return sum(float(number) * _UNITS[unit] for number, unit in re.findall(_PART, text))


def age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"


def since(time: str, now: datetime) -> str:
    """Return the age of a Kubernetes timestamp."""
    return age((now - datetime.fromisoformat(time)).total_seconds())
