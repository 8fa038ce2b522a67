"""How much a connection may hold for those who do not read: beyond that, and only then, its peer is made to wait."""

from __future__ import annotations

from collections.abc import Callable

_MAX_WINDOW = 2**30
# Small, so that a pause is short: a peer that cannot write for a minute gives up.
_RELIEF = 16 * 2**20


class Backpressure:
    """Counts what waits in all inboxes of one connection."""

    def __init__(self, pause: Callable[[], None], resume: Callable[[], None], *, most: int = _MAX_WINDOW) -> None:
        self._pause = pause
        self._resume = resume
        self._most = most
        self._held = 0
        self._is_paused = False

    def count(self, change: int) -> None:
        self._held += change
        if not self._is_paused and self._held > self._most:
            self._is_paused = True
            self._pause()
        elif self._is_paused and self._held <= max(self._most - _RELIEF, 0):
            self._is_paused = False
            self._resume()
