"""Limits for incomplete requests: size over all connections, and time.

The queue limits requests that wait for the model. Without a limit here, a few clients that never finish their requests
could fill the memory. A request that arrives in one piece, as most do, is not counted.
"""

from __future__ import annotations

import math
from asyncio import TimerHandle
from time import perf_counter

from skysail.runtimes.model_server.errors import Refused

# Maximum size of the headers, or of the trailers after a chunked body.
LONGEST_HEAD = 64 * 2**10
# Overhead of Python per piece: a body may arrive in very small pieces.
_PIECE = 64
_RETRY_SECONDS = 1


class HeadTooLong(Refused):
    def __init__(self) -> None:
        super().__init__(f"The headers are longer than {LONGEST_HEAD} bytes: send fewer or shorter ones.", 431)


class Arrivals:
    """Process-wide budget for incomplete requests:

    `most` bytes in total (a single request may exceed it) and `seconds` per request.
    """

    def __init__(self, *, most: float = math.inf, seconds: float = 60.0) -> None:
        self.most = most
        self.seconds = seconds
        self.size = 0


class Arrival:
    """Incomplete request. `late` is the timer of its timeout."""

    __slots__ = ("_arrivals", "_bare", "_since", "_size", "late")

    def __init__(self, arrivals: Arrivals, late: TimerHandle) -> None:
        self._arrivals = arrivals
        self._since = perf_counter()
        self._size = self._bare = 0
        self.late = late

    @property
    def seconds(self) -> float:
        return perf_counter() - self._since

    def keep(self, size: int) -> None:
        """Count received bytes. Raises Refused if the budget is exceeded and other requests share it."""
        self._size += size + _PIECE
        self._arrivals.size += size + _PIECE
        if self._size < self._arrivals.size > self._arrivals.most:
            sentence = "Too many incomplete requests (RECEIVE_BYTES): retry later."
            raise Refused(sentence, 503, retry_after=_RETRY_SECONDS)

    def lines(self, size: int) -> None:
        """Count header bytes without a body in between. Raises Refused."""
        self._bare += size
        if self._bare > LONGEST_HEAD:
            raise HeadTooLong

    def no_lines(self) -> None:
        self._bare = 0

    def end(self) -> None:
        self.late.cancel()
        self._arrivals.size -= self._size
        self._size = 0
