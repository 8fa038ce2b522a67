"""Forward TCP connections from the machine into the local cluster. Bytes only: TLS is not terminated."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from typing import Self

from skysail.local.errors import LocalError

Dialer = Callable[[], Awaitable[socket.socket]]

_CHUNK = 256 * 1024


def open_listener(preferred: int) -> socket.socket:
    """Return a listener on loopback at the preferred port, or at a free port if that is in use."""
    for port in (preferred, 0):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            listener.close()
            if port == 0:
                raise
            continue
        listener.listen(128)
        return listener
    raise AssertionError("port 0 is always tried")


class TcpProxy:
    """Listener whose connections are forwarded. Created by `serve`."""

    def __init__(self, dial: Dialer) -> None:
        self._dial = dial
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._is_closed = False

    async def open(self, listener: socket.socket) -> None:
        self._server = await asyncio.start_server(self._accept, sock=listener, limit=_CHUNK)

    async def serve_forever(self) -> None:
        assert self._server is not None, "serve opens the listener"
        await self._server.serve_forever()

    def close(self) -> None:
        """Stop listening, and end all connections. A connection that is just being accepted is closed at once."""
        self._is_closed = True
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()

    async def wait_closed(self) -> None:
        """Wait for the end of all connections: a task that is left when the event loop ends is reported as lost."""
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
        await self.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_closed:
            writer.close()
            return
        connection = asyncio.create_task(self._carry(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            try:
                inner_reader, inner_writer = await asyncio.open_connection(sock=await self._dial(), limit=_CHUNK)
            except (LocalError, OSError):
                return
            with contextlib.closing(inner_writer):
                await pipe_both((reader, writer), (inner_reader, inner_writer))


async def serve(listener: socket.socket, dial: Dialer) -> TcpProxy:
    """Forward each connection to one that `dial` opens inside. If dialling fails, close the connection."""
    tcp_proxy = TcpProxy(dial)
    await tcp_proxy.open(listener)
    return tcp_proxy


async def pipe_both(
    outside: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    inside: tuple[asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    """Copy both ways until both sides have ended or one has failed. The caller closes the streams."""
    try:
        async with asyncio.TaskGroup() as ways:
            ways.create_task(_pump(outside[0], inside[1]))
            ways.create_task(_pump(inside[0], outside[1]))
    except* OSError:
        pass  # one side failed


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the reader ends, then send EOF: the other direction may still be open."""
    while chunk := await reader.read(_CHUNK):
        writer.write(chunk)
        await writer.drain()
    writer.write_eof()
