"""Requests that come in piece by piece: how much of them is kept, of all connections together, and for how long.

What waits for the model is bounded elsewhere. Without a bound here, a few clients that never end their requests could
fill the memory before any of them waits. What comes in one piece, as most requests do, is never counted.
"""

from __future__ import annotations

import math
from asyncio import TimerHandle
from time import perf_counter

from skysail.runtimes.model_server.errors import Refused

# Of all lines before a body, or after one that came in chunks.
LONGEST_HEAD = 64 * 2**10
# What Python needs for a piece beside its bytes: a body may come in very small ones.
_PIECE = 64
_RETRY_SECONDS = 1


class HeadTooLong(Refused):
    def __init__(self) -> None:
        super().__init__(f"The headers are longer than {LONGEST_HEAD} bytes; send fewer or shorter ones.", 431)


class Arrivals:
    """Those of one process: `most` bytes, except for one that is alone, and `seconds` for each request."""

    def __init__(self, *, most: float = math.inf, seconds: float = 60.0) -> None:
        self.most = most
        self.seconds = seconds
        self.size = 0


class Arrival:
    """One request of which a part is here. `late` is called when its time is over."""

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
        """Raises Refused where that is too much, and others have a part in it."""
        self._size += size + _PIECE
        self._arrivals.size += size + _PIECE
        if self._size < self._arrivals.size > self._arrivals.most:
            sentence = "Too much is being sent to this server at once (RECEIVE_BYTES); try again later."
            raise Refused(sentence, 503, retry_after=_RETRY_SECONDS)

    def lines(self, size: int) -> None:
        """Of headers, and nothing of a body between them. Raises Refused."""
        self._bare += size
        if self._bare > LONGEST_HEAD:
            raise HeadTooLong

    def no_lines(self) -> None:
        self._bare = 0

    def end(self) -> None:
        self.late.cancel()
        self._arrivals.size -= self._size
        self._size = 0
