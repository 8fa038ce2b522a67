"""Request quota of the stand-in: three windows, reported on every answer."""

from __future__ import annotations

import math
from collections.abc import Callable

_WINDOWS = (("minute", 60, 1), ("hour", 3600, 50), ("day", 86400, 833))


class Quota:
    """Counts requests. `per_minute` is the quota of the smallest window; the others follow from it."""

    def __init__(self, per_minute: int, now: Callable[[], float]) -> None:
        self._now = now
        self._quotas = {name: per_minute * factor for name, _, factor in _WINDOWS}
        self._used = {name: (0.0, 0) for name, _, _ in _WINDOWS}

    def take(self) -> int:
        """Count a request. Returns the seconds to wait if the quota is used up, else 0."""
        waits = [self._reset(name, span) for name, span, _ in _WINDOWS if self._left(name, span) <= 0]
        if waits:
            return max(1, math.ceil(max(waits)))
        for name, span, _ in _WINDOWS:
            start, count = self._window(name, span)
            self._used[name] = (start, count + 1)
        return 0

    def headers(self) -> dict[str, str]:
        left = ", ".join(
            f'"{name}";r={max(self._left(name, span), 0)};t={math.ceil(self._reset(name, span))}'
            for name, span, _ in _WINDOWS
        )
        policy = ", ".join(f'"{name}";q={self._quotas[name]};w={span}' for name, span, _ in _WINDOWS)
        return {"RateLimit": left, "RateLimit-Policy": policy}

    def _window(self, name: str, span: int) -> tuple[float, int]:
        start, count = self._used[name]
        now = self._now()
        return (now, 0) if not count or now >= start + span else (start, count)

    def _left(self, name: str, span: int) -> int:
        return self._quotas[name] - self._window(name, span)[1]

    def _reset(self, name: str, span: int) -> float:
        return self._window(name, span)[0] + span - self._now()
