"""Request budget of one account, from the `RateLimit` and `RateLimit-Policy` headers of its answers.

The quota belongs to the user of the account, so other programs may use it, too. The last requests of a window are
reserved, but at most half of its quota: a log stream must not take the request that terminates a billed pod. When a
window ends, the next one is assumed to have the whole quota until an answer says otherwise: all that waited would else
be sent at once.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from skysail.cloud.errors import Throttled

# Number of requests of a window that are left to requests of higher urgency. An optional one is rather not sent at all.
URGENT = 0
NORMAL = 4
OPTIONAL = 14
DEFERRABLE = 15
_WINDOW = re.compile(r'"(\w{1,16})"\s*;\s*r=(\d{1,9})\s*;\s*t=(\d{1,9})')
_POLICY = re.compile(r'"(\w{1,16})"\s*;\s*q=(\d{1,9})\s*;\s*w=(\d{1,9})')
_MAX_WAIT = 3600.0
_DEFAULT_RETRY = 10.0


class _Window:
    """Requests that are left in one window, and the time when it starts again.

    `quota` requests are allowed in `span` seconds; both are 0 if the service does not say.
    """

    def __init__(self, left: int, until: float, quota: int, span: float) -> None:
        self.left = left
        self.until = until
        self._quota = quota
        self._span = span

    def advance(self, now: float) -> None:
        """Start the next window, if this one has ended."""
        if now >= self.until and self._quota and self._span:
            self.left, self.until = self._quota, now + self._span

    def is_used_up(self, reserve: int) -> bool:
        """Return whether only reserved requests are left. A full window always has one that is not reserved."""
        return self.left <= (min(reserve, self._quota // 2) if self._quota else reserve)


class RateBudget:
    """Counts down what the last answer left in each window. `clock` is monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._windows: dict[str, _Window] = {}
        self._blocked_until = 0.0

    async def acquire(self, reserve: int) -> None:
        """Take one request. Deferrable requests wait for the next window.

        Raises Throttled if other requests have to wait.
        """
        while (wait := self._wait(reserve)) > 0:
            if reserve < DEFERRABLE:
                raise Throttled(f"RunPod's request quota is used up for {wait:.0f} seconds.", wait)
            await asyncio.sleep(wait)
        for window in self._windows.values():
            window.left -= 1

    def observe(self, header: str, policy: str = "") -> None:
        """Take over the windows of a `RateLimit` and a `RateLimit-Policy` header. Malformed headers change nothing."""
        now = self._clock()
        quotas = {name: (int(quota), min(float(span), _MAX_WAIT)) for name, quota, span in _POLICY.findall(policy)}
        for name, left, seconds in _WINDOW.findall(header):
            self._windows[name] = _Window(int(left), now + min(float(seconds), _MAX_WAIT), *quotas.get(name, (0, 0.0)))

    def throttled(self, retry_after: str) -> float:
        """Record a 429 and return the seconds to wait."""
        is_number = retry_after.isascii() and retry_after.isdigit() and len(retry_after) < 10  # noqa: PLR2004 (digits)
        seconds = min(float(retry_after), _MAX_WAIT) if is_number else _DEFAULT_RETRY
        self._blocked_until = max(self._blocked_until, self._clock() + seconds)
        return seconds

    def _wait(self, reserve: int) -> float:
        now = self._clock()
        for window in self._windows.values():
            window.advance(now)
        used_up = (window for window in self._windows.values() if window.is_used_up(reserve))
        return max([self._blocked_until, *(window.until for window in used_up if window.until > now)]) - now
