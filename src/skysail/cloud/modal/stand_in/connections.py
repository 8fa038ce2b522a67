"""Connections between clients and the stand-in: a forwarder that can cut or hold all of them, as a network does."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable
from pathlib import Path

_CHUNK = 64 * 1024

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Connections:
    """All connections of one stand-in, to its control plane and to its task command router."""

    def __init__(self) -> None:
        self._writers: set[asyncio.StreamWriter] = set()
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._passes = asyncio.Event()
        self._passes.set()

    async def listen_on_socket(self, listener: socket.socket, inner: Path) -> None:
        """Forward connections from this listening Unix socket to the Unix socket `inner`."""
        server = await asyncio.start_unix_server(lambda *streams: self._forward(streams, _dial(inner)), sock=listener)
        self._servers.append(server)

    async def listen_with_tls(self, context: ssl.SSLContext, inner: Path, port: int = 0) -> int:
        """Forward TLS connections from a port of 127.0.0.1 to the Unix socket `inner`. Returns the port."""
        server = await asyncio.start_server(
            lambda *streams: self._forward(streams, _dial(inner)), "127.0.0.1", port, ssl=context
        )
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    def cut(self) -> None:
        """Abort every connection. New ones are accepted."""
        for writer in list(self._writers):
            writer.transport.abort()

    def hold(self) -> None:
        """Let no byte pass any more, on connections that stay open."""
        self._passes.clear()

    def release(self) -> None:
        self._passes.set()

    async def close(self) -> None:
        self.release()
        for server in self._servers:
            server.close()
        self.cut()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _forward(self, streams: Streams, dial: Awaitable[Streams]) -> None:
        task = asyncio.create_task(self._connect(streams, dial))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.wait({task})

    async def _connect(self, streams: Streams, dial: Awaitable[Streams]) -> None:
        try:
            other = await dial
        except OSError:
            streams[1].transport.abort()
            return
        writers = {streams[1], other[1]}
        self._writers |= writers
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._copy(streams[0], other[1]))
                tasks.create_task(self._copy(other[0], streams[1]))
        except* (OSError, EOFError):
            pass
        finally:
            self._writers -= writers
            for writer in writers:
                writer.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK):
            await self._passes.wait()
            writer.write(data)
            await writer.drain()
        raise EOFError


def _dial(path: Path) -> Awaitable[Streams]:
    return asyncio.open_unix_connection(path)
