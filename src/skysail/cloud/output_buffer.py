"""Buffer of the output of a run."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncIterator

from skysail.cloud.provider import Output

KEPT = 4 * 1024 * 1024
# Memory of a piece beside its bytes: a program may write millions of lines of one byte.
_OVERHEAD_BYTES = 128


class _Reader:
    """Position of one reader."""

    def __init__(self, at: int, *, needs_all: bool) -> None:
        self.at = at
        self.needs_all = needs_all


def size_of(piece: Output) -> int:
    """Return the memory that a piece takes in bytes."""
    return len(piece.data) + _OVERHEAD_BYTES


class OutputBuffer:
    """Output of a run, in order, for any number of readers. `kept` is its size in memory.

    The last few megabytes are kept for late readers. A reader that needs everything slows the program down instead of
    losing output. Other readers may miss output.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._pieces: deque[Output] = deque()
        self._first = 0
        self._bytes = 0
        self._has_ended = False
        self._has_reader = asyncio.Event()
        # Bytes that were dropped, so that a late reader does not get them.
        self.dropped = 0
        # Weak references, so that an abandoned reader does not block the program.
        self._readers: weakref.WeakSet[_Reader] = weakref.WeakSet()
        self._change = asyncio.Event()

    async def put(self, piece: Output) -> None:
        while self._bytes > self._kept and self._is_needed():
            await self._change.wait()
        self._pieces.append(piece)
        self._bytes += size_of(piece)
        self._trim()

    def would_drop(self, piece: Output) -> bool:
        """Return whether a piece does not fit, and no reader has come yet that could take the oldest output."""
        return self._bytes + size_of(piece) > self._kept and not self._has_reader.is_set()

    async def until_read(self) -> None:
        """Wait for the first reader that needs everything."""
        await self._has_reader.wait()

    def end(self) -> None:
        self._has_ended = True
        self._changed()

    def replay(self) -> AsyncIterator[Output]:
        """Yield the kept output and everything that follows, without a gap."""
        return self._read(self._enter(self._first, needs_all=True))

    def tail(self) -> AsyncIterator[Output]:
        """Yield new output only. A slow reader misses some of it."""
        return self._read(self._enter(self._first + len(self._pieces), needs_all=False))

    @property
    def is_complete(self) -> bool:
        """Return whether nothing was dropped, so that a new reader gets everything from the start."""
        return self._first == 0

    def last_line(self) -> str:
        """Return the last line, for a message."""
        lines = b"".join(piece.data for piece in self._pieces).decode(errors="replace").splitlines()
        return lines[-1].strip() if lines else ""

    def _enter(self, at: int, *, needs_all: bool) -> _Reader:
        reader = _Reader(at, needs_all=needs_all)
        self._readers.add(reader)
        if needs_all:
            self._has_reader.set()
        return reader

    async def _read(self, reader: _Reader) -> AsyncIterator[Output]:
        try:
            while True:
                reader.at = max(reader.at, self._first)
                if reader.at < self._first + len(self._pieces):
                    piece = self._pieces[reader.at - self._first]
                    reader.at += 1
                    self._trim()
                    yield piece
                elif self._has_ended:
                    return
                else:
                    await self._change.wait()
        finally:
            self._readers.discard(reader)
            self._trim()

    def _trim(self) -> None:
        while self._bytes > self._kept and not self._is_needed():
            piece = self._pieces.popleft()
            self._bytes -= size_of(piece)
            self.dropped += len(piece.data)
            self._first += 1
        self._changed()

    def _is_needed(self) -> bool:
        """Return whether a reader still needs the oldest chunk."""
        return any(reader.needs_all and reader.at <= self._first for reader in self._readers)

    def _changed(self) -> None:
        self._change.set()
        self._change = asyncio.Event()
