"""Log of one pod of the stand-in: lines with increasing ids, for any number of streams."""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import AsyncIterator

import msgspec

from skysail.cloud.runpod import api


class Entry(msgspec.Struct, frozen=True):
    """One line. `id` begins with the time, as those of the service do."""

    number: int
    at: float
    source: str
    line: str

    @property
    def ts(self) -> str:
        """Time in whole seconds: several lines share it, as in the examples of the service."""
        return api.timestamp(float(int(self.at))).replace(".000000", "")

    @property
    def id(self) -> str:
        return f"{self.ts}/{self.number:012d}"


class LogBook:
    """Log of one pod. It grows until `end`."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._parts: dict[str, bytes] = {}
        self._has_ended = False
        self._change = asyncio.Event()

    def add(self, source: str, line: str, at: float) -> None:
        self.entries.append(Entry(len(self.entries) + 1, at, source, line))
        self._changed()

    def write(self, data: bytes, at: float) -> None:
        """Add the whole lines of a piece of output; the rest waits for its line end."""
        *lines, rest = (self._parts.pop("container", b"") + data).split(b"\n")
        self._parts["container"] = rest
        for line in lines:
            self.add("container", line.decode(errors="replace"), at)

    def flush(self, at: float) -> None:
        """Add the last line of an ended program, even without a line end."""
        rest = self._parts.pop("container", b"")
        if rest:
            self.add("container", rest.decode(errors="replace"), at)

    def end(self) -> None:
        self._has_ended = True
        self._changed()

    async def read(self, start: int) -> AsyncIterator[Entry]:
        """Yield the entries after number `start`, and those that follow, to the end."""
        while True:
            while start < len(self.entries):
                yield self.entries[start]
                start += 1
            if self._has_ended:
                return
            await self._change.wait()

    def after(self, event_id: str) -> int:
        """Return the number after which a stream continues. A cursor may be an id or a mere time."""
        ts, _, number = event_id.partition("/")
        if number.isdigit():
            return min(int(number), len(self.entries))
        return self.since(ts)

    def since(self, ts: str) -> int:
        at = api.seconds(ts) or 0.0
        return bisect.bisect_left(self.entries, at, key=lambda entry: entry.at)

    def _changed(self) -> None:
        self._change.set()
        self._change = asyncio.Event()
