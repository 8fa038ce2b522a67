"""Forward TCP connections from the machine into the local cluster. Bytes only: TLS is not terminated."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable

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


async def serve(listener: socket.socket, dial: Dialer) -> asyncio.Server:
    """Forward each connection to one that `dial` opens inside. If dialling fails, close the connection."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            try:
                inner_reader, inner_writer = await asyncio.open_connection(sock=await dial(), limit=_CHUNK)
            except (LocalError, OSError):
                return
            with contextlib.closing(inner_writer):
                await pipe_both((reader, writer), (inner_reader, inner_writer))

    return await asyncio.start_server(carry, sock=listener, limit=_CHUNK)


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
