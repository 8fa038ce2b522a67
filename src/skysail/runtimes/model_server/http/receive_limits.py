"""Limits for incomplete requests: size over all connections, and time.

The queue limits requests that wait for the model. Without a limit here, a few clients that never finish their requests
could fill the memory. A request that arrives in one piece, as most do, is not counted.
"""

from __future__ import annotations

import math
from asyncio import TimerHandle
from time import perf_counter

from skysail.runtimes.model_server.errors import RequestError

# Maximum size of the headers, or of the trailers after a chunked body.
MAX_HEAD_BYTES = 64 * 2**10
# Overhead of Python per piece: a body may arrive in very small pieces.
_PIECE = 64
_RETRY_SECONDS = 1


class HeadTooLong(RequestError):
    def __init__(self) -> None:
        super().__init__(f"The headers are longer than {MAX_HEAD_BYTES} bytes: send fewer or shorter ones.", 431)


class ReceiveBudget:
    """Process-wide budget for incomplete requests:

    `most` bytes in total (a single request may exceed it) and `seconds` per request.
    """

    def __init__(self, *, most: float = math.inf, seconds: float = 60.0) -> None:
        self.most = most
        self.seconds = seconds
        self.size = 0


class IncompleteRequest:
    """Incomplete request. `late` is the timer of its timeout."""

    __slots__ = ("_bare", "_budget", "_since", "_size", "timer")

    def __init__(self, budget: ReceiveBudget, late: TimerHandle) -> None:
        self._budget = budget
        self._since = perf_counter()
        self._size = self._bare = 0
        self.timer = late

    @property
    def seconds(self) -> float:
        return perf_counter() - self._since

    def add(self, size: int) -> None:
        """Count received bytes. Raises RequestError if the budget is exceeded and other requests share it."""
        self._size += size + _PIECE
        self._budget.size += size + _PIECE
        if self._size < self._budget.size > self._budget.most:
            sentence = "Too many incomplete requests (RECEIVE_BYTES): retry later."
            raise RequestError(sentence, 503, retry_after=_RETRY_SECONDS)

    def add_header_bytes(self, size: int) -> None:
        """Count header bytes without a body in between. Raises RequestError."""
        self._bare += size
        if self._bare > MAX_HEAD_BYTES:
            raise HeadTooLong

    def no_lines(self) -> None:
        self._bare = 0

    def end(self) -> None:
        self.timer.cancel()
        self._budget.size -= self._size
        self._size = 0
