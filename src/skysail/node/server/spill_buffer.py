"""Buffer of unread bytes of a peer: in memory first, then on disk.

A program may not read its input for minutes. If the connection were not read meanwhile, its pings would stay unanswered
and kubectl would give up after a minute; so arriving bytes are buffered. Files are small and local, so they are read
and written in the event loop.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import deque
from collections.abc import Callable
from typing import IO

from skysail.node.server.errors import PeerGone

PIECE = 128 * 1024
_IN_MEMORY = 4 * 2**20


class SpillBuffer:
    """Buffer that a connection fills and one task reads. `counted` is called with each change of its size."""

    def __init__(self, counted: Callable[[int], None], *, in_memory: int = _IN_MEMORY) -> None:
        self._counted = counted
        self._limit = in_memory
        self._pieces: deque[bytes] = deque()
        self._in_memory = 0
        self._disk: _Disk | None = None
        self._changed = asyncio.Event()
        self._has_ended = False
        self._is_lost = False

    def put(self, data: bytes) -> None:
        if self._has_ended or not data:
            return
        # Bytes on disk are newer than bytes in memory: while there are some, new bytes go to disk as well.
        if self._disk is None and self._in_memory + len(data) <= self._limit:
            self._pieces.append(data)
            self._in_memory += len(data)
        else:
            self._disk = self._disk or _Disk()
            self._disk.put(data)
        self._counted(len(data))
        self._changed.set()

    def end(self) -> None:
        """Mark the end: the peer sends no more bytes."""
        self._has_ended = True
        self._changed.set()

    def lose(self) -> None:
        """Drop all bytes: the peer has disconnected, or its bytes are not needed any more."""
        self._has_ended = self._is_lost = True
        unread = self._in_memory + (self._disk.size if self._disk else 0)
        self._pieces.clear()
        self._in_memory = 0
        self._close_disk()
        if unread:
            self._counted(-unread)
        self._changed.set()

    async def read(self) -> bytes:
        """Return the next bytes; empty at the end. Raises PeerGone if the peer disconnected before the end."""
        while True:
            if self._is_lost:
                raise PeerGone("the peer has disconnected")
            data = self._take()
            if data or self._has_ended:
                return data
            self._changed.clear()
            await self._changed.wait()

    def _take(self) -> bytes:
        if self._pieces:
            data = self._pieces.popleft()
            self._in_memory -= len(data)
        elif self._disk:
            data = self._disk.take()
            if not self._disk.size:
                self._close_disk()
        else:
            return b""
        self._counted(-len(data))
        return data

    def _close_disk(self) -> None:
        if self._disk:
            self._disk.close()
            self._disk = None


class _Disk:
    """An unnamed file: bytes are appended, and read from the beginning."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (its owner closes it)
        self._read = 0
        self._written = 0

    @property
    def size(self) -> int:
        return self._written - self._read

    def put(self, data: bytes) -> None:
        self._file.seek(self._written)
        self._file.write(data)
        self._written += len(data)

    def take(self) -> bytes:
        self._file.seek(self._read)
        data = self._file.read(min(PIECE, self.size))
        self._read += len(data)
        return data

    def close(self) -> None:
        self._file.close()
