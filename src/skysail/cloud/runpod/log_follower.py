"""Follows the log of one pod: its output, and the exit that the wrapper reports in it.

A stream that breaks is continued after the last event, so that no line is lost or repeated. The exit is the last line
of a log: as long as the output waits for its reader, the exit is not known, and the pod with its log is not deleted.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import AsyncIterator

from skysail.cloud.errors import ProviderError
from skysail.cloud.output_buffer import OutputBuffer
from skysail.cloud.provider import Ended, Output
from skysail.cloud.runpod import api
from skysail.cloud.runpod.client import RunPodClient
from skysail.runtimes.exit_code.script import ReportedExit, reported_exit, reports_start

_KEPT_BYTES = 256 * 1024
# A log that does not fit into the buffer waits this long for its reader, which a new process may start later. Then the
# start of the output is dropped: without a reader, the exit of the pod would never be known.
_READER_SECONDS = 120.0
_FIRST_DELAY = 1.0
_MAX_DELAY = 60.0
# A line that is not later than the line before is moved behind it by this much: a log store drops a time that it has.
_STEP = 1e-6
_KILLED = 137
_PULL_FAILURE = re.compile(
    r"error (?:pulling|creating)|pull(?:ing)? .*(?:failed|denied)|manifest unknown|toomanyrequests", re.IGNORECASE
)
_GAP = "(Skysail lost at most {} bytes of output before this line: the pod at RunPod ended before they were read.)\n"
_REASONS = {"deadline": "DeadlineExceeded", "restarted": "ContainerRestarted"}
_MESSAGES = {
    "deadline": "The program reached its maximum lifetime.",
    "restarted": "RunPod restarted the container while the program ran.",
}

log = logging.getLogger(__name__)


class Cursor:
    """Position in a log. It resumes one event earlier than necessary, because events may share an id."""

    def __init__(self) -> None:
        self.resume_after = ""
        self._resume_at = 0.0
        self._last = ""
        self._last_at = 0.0
        self._repeated = 0
        self._skipped = 0
        self._is_resuming = False

    def restart(self) -> None:
        """Prepare for a stream that begins after `resume_after`, at it, or further back."""
        self._skipped = 0
        self._is_resuming = bool(self.resume_after)

    def is_new(self, event: api.LogEvent) -> bool:
        """Record the event. Returns whether it was not delivered before."""
        if self._is_resuming:
            # A service that does not have the cursor any more may begin with older events.
            is_older = 0 < event.at < self._resume_at and event.id != self._last
            if is_older or event.id == self.resume_after:
                return False
            self._is_resuming = False
        if event.id == self._last:
            if self._skipped < self._repeated:
                self._skipped += 1
                return False
            self._repeated += 1
            self._skipped = self._repeated
            return True
        self.resume_after, self._resume_at = self._last, self._last_at
        self._last, self._last_at = event.id, event.at
        self._repeated = self._skipped = 1
        return True


class LogFollower:
    """Follower of one pod. `run` returns when the exit is known or the pod is deleted; the buffer ends with it."""

    def __init__(self, client: RunPodClient, pod: str, *, created: float, nonce: str) -> None:
        self.buffer = OutputBuffer(_KEPT_BYTES)
        self.started: float | None = None
        self.exit: Ended | None = None
        self.pull_failure = ""
        # Set once the service shows that a container was started or tried: before, there is nothing to read.
        self.ready = asyncio.Event()
        self.is_deleted = False
        self.done = asyncio.Event()
        self._client = client
        self._pod = pod
        self._since = max(created - 1.0, 0.0)
        self._nonce = nonce
        self._cursor = Cursor()
        self._held: list[Output] = []
        self._last = 0.0
        self._taken = 0
        self._is_unread = False

    async def run(self) -> None:
        try:
            await self.ready.wait()
            await self._follow()
        finally:
            for piece in self._held:
                await self.buffer.put(piece)
            self.buffer.end()
            self.done.set()

    async def output(self, *, after: float = 0.0, seen: int = 0) -> AsyncIterator[Output]:
        """Yield the output later than `after`, of which a reader has `seen` bytes. A line says how much is missing."""
        pieces = self.buffer.replay()
        missing = self.buffer.dropped - seen
        async for piece in pieces:
            if piece.at <= after:
                continue
            if missing > 0:
                yield Output("stdout", piece.at - _STEP / 2, _GAP.format(missing).encode())
                missing = 0
            yield piece

    async def _follow(self) -> None:
        delay = _FIRST_DELAY
        while not self._is_done():
            taken = self._taken
            try:
                await self._read()
            except ProviderError as error:
                log.debug("log stream ended, continued", extra={"pod": self._pod, "why": str(error)})
            except Exception:  # without its log, the exit of a pod would never be known
                log.warning("log stream failed, continued", extra={"pod": self._pod}, exc_info=True)
            if self._is_done():
                return
            delay = _FIRST_DELAY if self._taken > taken else min(2 * delay, _MAX_DELAY)
            await asyncio.sleep(random.uniform(delay / 2, delay))  # noqa: S311 (spreads the load)

    def _is_done(self) -> bool:
        return self.exit is not None or self.is_deleted

    async def _read(self) -> None:
        self._cursor.restart()
        events = self._client.logs(self._pod, since=self._since, last_event=self._cursor.resume_after)
        async for event in events:
            if not self._cursor.is_new(event):
                continue
            await self._take(event)
            if self.exit is not None:
                return

    async def _take(self, event: api.LogEvent) -> None:
        self._taken += 1
        if event.source != "container":
            if _PULL_FAILURE.search(event.line):
                self.pull_failure = event.line[:1024]
            return
        at = self._time(event)
        reported = reported_exit(event.line, self._nonce)
        if reported is not None:
            self._held.clear()  # the empty line before the report is the wrapper's
            self.exit = _ended(reported, at)
            return
        if reports_start(event.line, self._nonce):
            if self.started is None:
                self.started = at
            else:
                # The state of the wrapper was lost with the container's disk, and the program runs a second time.
                self.exit = _ended(ReportedExit(_KILLED, "restarted", ""), at)
            return
        for piece in self._held:
            await self._put(piece)
        self._held.clear()
        piece = Output("stdout", at, f"{event.line}\n".encode())
        if event.line:
            await self._put(piece)
        else:
            self._held.append(piece)

    async def _put(self, piece: Output) -> None:
        """Add output. Waits for a reader before the first piece that does not fit."""
        if self.buffer.would_drop(piece) and not self._is_unread:
            try:
                async with asyncio.timeout(_READER_SECONDS):
                    await self.buffer.until_read()
            except TimeoutError:
                self._is_unread = True
                log.warning("output without a reader, its start is dropped", extra={"pod": self._pod})
        await self.buffer.put(piece)

    def _time(self, event: api.LogEvent) -> float:
        """Return a time that no other line has, later than that of the line before.

        The same log gives the same times to every reader.
        """
        self._last = max(event.at or self._since, self._last + _STEP)
        return self._last


def _ended(reported: ReportedExit, at: float) -> Ended:
    reason = _REASONS.get(reported.reason) or ("Completed" if reported.code == 0 else "Error")
    message = reported.message or _MESSAGES.get(reported.reason, "")
    return Ended(code=reported.code, reason=reason, message=message, ended=at)
