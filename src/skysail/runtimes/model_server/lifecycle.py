"""Where the server is in its life. What it answers to a probe follows from that."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class Phase(StrEnum):
    LOADING = "loading"
    WARMING = "warming"
    SERVING = "serving"
    DRAINING = "draining"


class Life:
    """A model that is with one batch for `hung` seconds gets no more, and after `dead` seconds the process is given up.

    Only a new process ends such a thread. Of either 0 means never.
    """

    def __init__(self, *, hung: float = 0, dead: float = 0) -> None:
        self.phase = Phase.LOADING
        self._hung = hung
        self._dead = dead
        self._busy: Callable[[], float] = lambda: 0.0

    def watch(self, busy_seconds: Callable[[], float]) -> None:
        """It tells for how long the model has been with one batch."""
        self._busy = busy_seconds

    @property
    def is_ready(self) -> bool:
        return self.phase is Phase.SERVING and not 0 < self._hung <= self._busy()

    @property
    def is_live(self) -> bool:
        return not 0 < self._dead <= self._busy()

    @property
    def counts(self) -> bool:
        """Whether requests are those of clients."""
        return self.phase in {Phase.SERVING, Phase.DRAINING}
