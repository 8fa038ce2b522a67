"""What a peer has sent and nobody has taken yet: in memory first, then on disk.

A program may not read its input for minutes. Were the connection not read meanwhile, its pings would stay unanswered
and kubectl would give up after a minute; so what arrives is kept. Files are small and local, hence read and written in
the event loop.
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
    """Filled by a connection, read by one task. `counted` hears by how many bytes it has grown or shrunk."""

    def __init__(self, counted: Callable[[int], None], *, in_memory: int = _IN_MEMORY) -> None:
        self._counted = counted
        self._limit = in_memory
        self._pieces: deque[bytes] = deque()
        self._in_memory = 0
        self._disk: _Disk | None = None
        self._news = asyncio.Event()
        self._has_ended = False
        self._is_lost = False

    def put(self, data: bytes) -> None:
        if self._has_ended or not data:
            return
        # What is on disk is younger than what is in memory: as long as there is some, the disk is the end of the line.
        if self._disk is None and self._in_memory + len(data) <= self._limit:
            self._pieces.append(data)
            self._in_memory += len(data)
        else:
            self._disk = self._disk or _Disk()
            self._disk.put(data)
        self._counted(len(data))
        self._news.set()

    def end(self) -> None:
        """The peer has said all that it will say."""
        self._has_ended = True
        self._news.set()

    def lose(self) -> None:
        """The peer is gone, or nobody wants its bytes any more: what waits is thrown away."""
        self._has_ended = self._is_lost = True
        waiting = self._in_memory + (self._disk.size if self._disk else 0)
        self._pieces.clear()
        self._in_memory = 0
        self._close_disk()
        if waiting:
            self._counted(-waiting)
        self._news.set()

    async def read(self) -> bytes:
        """The next bytes; none at the end. Raises PeerGone where there will be no proper end."""
        while True:
            if self._is_lost:
                raise PeerGone("the peer has gone")
            data = self._take()
            if data or self._has_ended:
                return data
            self._news.clear()
            await self._news.wait()

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
    """A nameless file, written at its end and read from its beginning."""

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
