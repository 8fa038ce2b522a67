"""Where the server is in its life. What it answers to a probe follows from that."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    LOADING = "loading"
    WARMING = "warming"
    SERVING = "serving"
    DRAINING = "draining"


class Life:
    def __init__(self) -> None:
        self.phase = Phase.LOADING

    @property
    def is_ready(self) -> bool:
        return self.phase is Phase.SERVING

    @property
    def counts(self) -> bool:
        """Whether requests are those of clients."""
        return self.phase in {Phase.SERVING, Phase.DRAINING}
