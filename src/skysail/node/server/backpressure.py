"""Limit of the unread bytes of a connection: above it, and only then, reading from the peer is paused."""

from __future__ import annotations

from collections.abc import Callable

_MAX_WINDOW = 2**30
# Small, so that a pause is short: a peer that cannot write for a minute gives up.
_HYSTERESIS = 16 * 2**20


class Backpressure:
    """Counts the unread bytes in all inboxes of one connection."""

    def __init__(self, pause: Callable[[], None], resume: Callable[[], None], *, max_bytes: int = _MAX_WINDOW) -> None:
        self._pause = pause
        self._resume = resume
        self._max_bytes = max_bytes
        self._unread = 0
        self._is_paused = False

    def count(self, change: int) -> None:
        self._unread += change
        if not self._is_paused and self._unread > self._max_bytes:
            self._is_paused = True
            self._pause()
        elif self._is_paused and self._unread <= max(self._max_bytes - _HYSTERESIS, 0):
            self._is_paused = False
            self._resume()
