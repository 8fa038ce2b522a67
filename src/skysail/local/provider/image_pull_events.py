"""Tells the user of a pod what becomes of an image that is not here yet: that it is made, how far it is, its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from skysail.base.names import EventReason

# Every step is an event that the API server keeps: often enough for who waits, rare enough for who stores.
_INTERVAL_SECONDS = 5.0

Tell = Callable[[EventReason, str], None]


class PullReporter:
    """Silent where the image is here already. Steps that come too fast are left out, and the newest is told."""

    def __init__(self, image: str, tell: Tell) -> None:
        self._image = image
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._began: float | None = None
        self._untold = ""
        self._timer: asyncio.TimerHandle | None = None

    def say(self, step: str) -> None:
        if self._began is None:
            self._began = self._loop.time()
            self._tell(EventReason.PULLING, f"Image {self._image} is not here yet: {step}")
            self._wait()
        else:
            self._untold = step

    def over(self, *, is_here: bool) -> None:
        """Nothing is told after this."""
        if self._timer is not None:
            self._timer.cancel()
        if is_here and self._began is not None:
            seconds = self._loop.time() - self._began
            self._tell(EventReason.PULLED, f"Image {self._image} is here after {seconds:.1f} s")

    def _wait(self) -> None:
        self._timer = self._loop.call_later(_INTERVAL_SECONDS, self._next)

    def _next(self) -> None:
        if self._untold:
            self._tell(EventReason.PULLING, self._untold)
            self._untold = ""
        self._wait()
