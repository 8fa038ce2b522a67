"""Lifecycle phase of the server, which decides the answers to probes."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class Phase(StrEnum):
    LOADING = "loading"
    WARMING = "warming"
    SERVING = "serving"
    DRAINING = "draining"


class Lifecycle:
    """Lifecycle of the server.

    A batch that runs for `hung` seconds makes the server unready, and one that runs for `dead` seconds makes it not
    live: only a restart ends such a thread. 0 means never.
    """

    def __init__(self, *, hung: float = 0, dead: float = 0) -> None:
        self.phase = Phase.LOADING
        self._hung = hung
        self._dead = dead
        self._busy: Callable[[], float] = lambda: 0.0

    def watch(self, busy_seconds: Callable[[], float]) -> None:
        """Set the function that returns how long the current batch has been running."""
        self._busy = busy_seconds

    @property
    def is_ready(self) -> bool:
        return self.phase is Phase.SERVING and not 0 < self._hung <= self._busy()

    @property
    def is_live(self) -> bool:
        return not 0 < self._dead <= self._busy()

    @property
    def is_counted(self) -> bool:
        """Return whether requests come from clients and count in the metrics."""
        return self.phase in {Phase.SERVING, Phase.DRAINING}
