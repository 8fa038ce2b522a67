"""Talking to a command beside a run, to a run itself, and to a port of a pod."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from skysail.cloud.provider import Output
from skysail.local.bubblewrap.container import ExecProcess
from skysail.local.provider.container_run import ContainerRun

_END_OF_INPUT = b"\x04"
_CHUNK = 64 * 1024


class Exec:
    """Owns its command, but does not end it: one without a terminal goes on when the user has gone."""

    def __init__(self, running: ExecProcess) -> None:
        self._running = running
        self._end = asyncio.create_task(running.wait())

    async def write(self, data: bytes) -> None:
        if self._running.streams.sink is not None:
            await self._running.streams.sink.write(data)

    async def close_stdin(self) -> None:
        if self._running.streams.sink is None:
            return
        if self._running.streams.is_terminal:
            await self.write(_END_OF_INPUT)
        else:
            await self._running.streams.sink.finish()

    def output(self) -> AsyncIterator[Output]:
        return self._running.output.replay()

    async def resize(self, width: int, height: int) -> None:
        self._running.streams.resize(width, height)

    async def wait(self) -> int:
        return await asyncio.shield(self._end)

    async def kill(self) -> None:
        self._running.kill()

    async def close(self) -> None:
        await self._running.detach()


class Attached:
    """A visitor of a run, which goes on without him."""

    def __init__(self, container_run: ContainerRun, *, stdin: bool) -> None:
        self._container_run = container_run
        self._std_streams = container_run.box.streams
        self._sink = self._std_streams.sink if stdin else None
        self._output = container_run.box.output.tail()

    async def write(self, data: bytes) -> None:
        if self._sink is not None:
            await self._sink.write(data)

    async def close_stdin(self) -> None:
        """The run's input stays open for the next visitor, unless it is for one only."""
        if self._sink is not None and self._container_run.container.stdin_once:
            await self._sink.finish()

    def output(self) -> AsyncIterator[Output]:
        return self._output

    async def resize(self, width: int, height: int) -> None:
        self._std_streams.resize(width, height)

    async def wait(self) -> int:
        return (await self._container_run.ended()).code

    async def kill(self) -> None:
        """The run is not its visitor's to end."""

    async def close(self) -> None:
        await self.close_stdin()


class SocketConnection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        try:
            return await self._reader.read(_CHUNK)
        except ConnectionError:
            return b""

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def write_eof(self) -> None:
        self._writer.write_eof()

    async def close(self) -> None:
        self._writer.close()
