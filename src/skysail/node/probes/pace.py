"""Pace of the commands that probes run, for a provider whose requests are limited."""

from __future__ import annotations

import asyncio


class ProbePace:
    """Shared by the probes of all pods of a node: each waits for its turn, so that a short period becomes longer."""

    def __init__(self, per_minute: int) -> None:
        self._interval = 60.0 / per_minute if per_minute else 0.0
        self._next = 0.0

    async def wait_for_turn(self) -> None:
        if not self._interval:
            return
        now = asyncio.get_running_loop().time()
        turn = max(now, self._next)
        self._next = turn + self._interval
        await asyncio.sleep(turn - now)
