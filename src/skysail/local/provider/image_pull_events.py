"""Events about an image whose environment is being built: start, progress, end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from skysail.base.names import EventReason

# The API server stores every event, so progress is reported at this interval only.
_INTERVAL_SECONDS = 5.0

Record = Callable[[EventReason, str], None]
Show = Callable[[str], None]


class PullReporter:
    """Records the events of one pull, and shows its newest step. Silent if the environment exists already.

    Of steps that follow too fast, only the newest is recorded. `show` gets an empty step at the end.
    """

    def __init__(self, image: str, record: Record, show: Show) -> None:
        self._image = image
        self._record = record
        self._show = show
        self._loop = asyncio.get_running_loop()
        self._began: float | None = None
        self._newest = ""
        self._timer: asyncio.TimerHandle | None = None

    def report(self, step: str) -> None:
        if self._began is None:
            self._began = self._loop.time()
            self._record(EventReason.PULLING, f"Image {self._image} is being built: {step}")
            self._show(step)
            self._wait()
        else:
            self._newest = step

    def finish(self, *, is_here: bool) -> None:
        """Finish the reports. No event is recorded after this."""
        if self._timer is not None:
            self._timer.cancel()
        if self._began is not None:
            self._show("")
        if is_here and self._began is not None:
            seconds = self._loop.time() - self._began
            self._record(EventReason.PULLED, f"Image {self._image} is ready after {seconds:.1f} s")

    def _wait(self) -> None:
        self._timer = self._loop.call_later(_INTERVAL_SECONDS, self._next)

    def _next(self) -> None:
        if self._newest:
            self._record(EventReason.PULLING, self._newest)
            self._show(self._newest)
            self._newest = ""
        self._wait()
