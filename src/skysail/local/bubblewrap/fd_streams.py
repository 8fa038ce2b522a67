"""Asynchronous reading and writing of descriptors without threads."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Awaitable, Callable

_CHUNK = 64 * 1024


class Source:
    """Reading end of a pipe or terminal. Owns the descriptor. May be closed repeatedly."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor: int | None = descriptor

    async def read(self) -> bytes:
        """Return the next bytes. Empty at the end."""
        while self._descriptor is not None:
            try:
                return os.read(self._descriptor, _CHUNK)
            except BlockingIOError:
                await _until(asyncio.get_running_loop().add_reader, self._descriptor)
            except OSError as error:
                if error.errno == errno.EIO:  # the last program of the terminal has ended
                    return b""
                raise
        return b""

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class Sink:
    """Writing end of a pipe or terminal. Owns the descriptor. May be closed repeatedly."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor: int | None = descriptor
        self._lock = asyncio.Lock()

    async def write(self, data: bytes) -> None:
        """Write all data, and wait while the pipe is full. Data is dropped if the reader is gone."""
        async with self._lock:
            rest = memoryview(data)
            while rest and self._descriptor is not None:
                try:
                    rest = rest[os.write(self._descriptor, rest) :]
                except BlockingIOError:
                    await _until(asyncio.get_running_loop().add_writer, self._descriptor)
                except OSError as error:
                    if error.errno not in (errno.EPIPE, errno.EIO):
                        raise
                    return

    async def finish(self) -> None:
        """Close after the current write."""
        async with self._lock:
            self.close()

    def close(self) -> None:
        if self._descriptor is not None:
            asyncio.get_running_loop().remove_writer(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None


async def _until(add: Callable[..., None], descriptor: int) -> None:
    """Wait until the descriptor is readable or writable."""
    loop = asyncio.get_running_loop()
    is_ready: asyncio.Future[None] = loop.create_future()
    add(descriptor, _set, is_ready)
    try:
        await is_ready
    finally:
        (loop.remove_reader if add == loop.add_reader else loop.remove_writer)(descriptor)


def _set(is_ready: asyncio.Future[None]) -> None:
    if not is_ready.done():
        is_ready.set_result(None)


async def copy(source: Source, put: Callable[[bytes], Awaitable[None]]) -> None:
    """Read to the end. Backpressure: while `put` waits, the program waits."""
    with contextlib.closing(source):
        while data := await source.read():
            await put(data)
