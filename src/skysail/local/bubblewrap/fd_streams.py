"""Descriptors read and written without a thread."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Awaitable, Callable

_CHUNK = 64 * 1024


class Source:
    """The reading end of a pipe or of a terminal. Owns the descriptor. May be closed twice."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor: int | None = descriptor

    async def read(self) -> bytes:
        """Some bytes; none at the end."""
        while self._descriptor is not None:
            try:
                return os.read(self._descriptor, _CHUNK)
            except BlockingIOError:
                await _until(asyncio.get_running_loop().add_reader, self._descriptor)
            except OSError as error:
                if error.errno == errno.EIO:  # a terminal whose last program has gone
                    return b""
                raise
        return b""

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class Sink:
    """The writing end of a pipe or of a terminal. Owns the descriptor. May be closed twice."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor: int | None = descriptor
        self._turn = asyncio.Lock()

    async def write(self, data: bytes) -> None:
        """Waits while nobody reads. What nobody can read any more is dropped."""
        async with self._turn:
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
        """Close after what is being written."""
        async with self._turn:
            self.close()

    def close(self) -> None:
        if self._descriptor is not None:
            asyncio.get_running_loop().remove_writer(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None


async def _until(add: Callable[..., None], descriptor: int) -> None:
    """Until the descriptor can be read or written, or this task is cancelled."""
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
    """Read to the end; where `put` waits, the program waits."""
    with contextlib.closing(source):
        while data := await source.read():
            await put(data)
