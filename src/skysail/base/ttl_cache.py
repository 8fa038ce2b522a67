"""A bounded cache whose entries expire."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_MAX_ENTRIES = 4096


class Memory(Generic[K, V]):
    """Bounded: a client that probes with many tokens can only evict the oldest entries."""

    def __init__(self, clock: Callable[[], float], *, most: int = _MAX_ENTRIES) -> None:
        self._clock = clock
        self._most = most
        self._answers: dict[K, tuple[float, V]] = {}

    async def get_or_fetch(self, key: K, fetch: Callable[[], Awaitable[V]], *, ttl: Callable[[V], float]) -> V:
        """Return the cached value, or fetch one and cache it for `ttl(value)` seconds. Errors are not cached."""
        known = self._answers.get(key)
        if known and known[0] > self._clock():
            return known[1]
        answer = await fetch()
        self._answers.pop(key, None)
        self._answers[key] = (self._clock() + ttl(answer), answer)
        if len(self._answers) > self._most:
            del self._answers[next(iter(self._answers))]
        return answer

    def discard(self, key: K) -> None:
        """Forget the value of a key, so that the next call fetches it."""
        self._answers.pop(key, None)
