"""Work queue of keys. An event only enqueues a key; the reconcile finds out what changed.

The rules are client-go's: a key is queued once however often it is added, one worker holds it at a time, and a key that
is added while a worker holds it is queued again afterwards. Delays and backoff are per key.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from skysail.base.backoff import delay_bound

K = TypeVar("K", bound=Hashable)


class WorkQueue(Generic[K]):
    """Work queue for one event loop. Only `get` awaits."""

    def __init__(self, *, rng: random.Random, first_delay: float = 1.0, longest_delay: float = 300.0) -> None:
        self._rng = rng
        self._first_delay = first_delay
        self._longest_delay = longest_delay
        self._ready: deque[K] = deque()
        self._dirty: dict[K, float] = {}
        self._running: set[K] = set()
        self._failures: dict[K, int] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._loop = asyncio.get_running_loop()

    def add(self, key: K) -> None:
        """Enqueue the key now."""
        if key in self._dirty:
            return
        self._dirty[key] = self._loop.time()
        if key not in self._running:
            self._make_ready(key)

    def add_after(self, key: K, delay: float) -> None:
        """Enqueue the key after at most `delay` seconds. An earlier timer stays."""
        due = self._loop.time() + delay
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= due:
                return
            timer.cancel()
        self._timers[key] = self._loop.call_at(due, self._due, key)

    def add_rate_limited(self, key: K, min_delay: float = 0.0, max_delay: float = float("inf")) -> float:
        """Enqueue the key after a failure, with a longer delay each time. Returns the delay."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        longest = delay_bound(failures, first=self._first_delay, longest=self._longest_delay)
        delay = max(min_delay, min(max_delay, self._rng.uniform(self._first_delay / 2, longest)))
        self.add_after(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """Reset the backoff of the key after a success."""
        self._failures.pop(key, None)

    def discard(self, key: K) -> None:
        """Drop timer and backoff of a deleted object."""
        self.forget(key)
        if timer := self._timers.pop(key, None):
            timer.cancel()

    async def get(self) -> tuple[K, float]:
        """Return the next key and the seconds that it was queued.

        Call `done` with the key afterwards, also after an error.
        """
        while not self._ready:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                # The key may have been announced to this waiter only, so wake the next one.
                if waiter.done() and not waiter.cancelled():
                    self._wake_one()
                raise
        key = self._ready.popleft()
        self._running.add(key)
        return key, self._loop.time() - self._dirty.pop(key)

    def done(self, key: K) -> None:
        self._running.discard(key)
        if key in self._dirty:
            self._make_ready(key)

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def is_idle(self) -> bool:
        """Return whether no key is queued or being processed. Timers may be pending."""
        return not self._dirty and not self._running

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _due(self, key: K) -> None:
        del self._timers[key]
        self.add(key)

    def _make_ready(self, key: K) -> None:
        self._ready.append(key)
        self._wake_one()

    def _wake_one(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
