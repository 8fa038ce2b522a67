"""Mapped TCP ports of one pod of the stand-in: a listener on loopback for each."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from skysail.cloud.errors import ProviderError
from skysail.cloud.provider import PortConnection

_HOST = "127.0.0.1"
_READ_BYTES = 65536


class PortMappings:
    """Listeners by the port in the container. `connect` connects to a port of the pod."""

    def __init__(self, connect: Callable[[int], Awaitable[PortConnection]]) -> None:
        self.public: dict[int, int] = {}
        self._connect = connect
        self._servers: list[asyncio.Server] = []
        self._opening: asyncio.Task[None] | None = None

    async def open(self, ports: tuple[int, ...], *, delay: float) -> None:
        """Open listeners after a delay. They stay when the container is restarted."""
        if ports and self._opening is None:
            self._opening = asyncio.create_task(self._open(ports, delay))

    async def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        for server in self._servers:
            server.close()
        self.public.clear()

    async def _open(self, ports: tuple[int, ...], delay: float) -> None:
        await asyncio.sleep(delay)
        for port in ports:
            server = await asyncio.start_server(self._forwarder(port), _HOST, 0)
            self._servers.append(server)
            self.public[port] = int(server.sockets[0].getsockname()[1])

    def _forwarder(self, port: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ProviderError, OSError):
                connection = await self._connect(port)
                try:
                    async with asyncio.TaskGroup() as tasks:
                        tasks.create_task(_upload(reader, connection))
                        tasks.create_task(_download(connection, writer))
                except* (ProviderError, OSError):
                    writer.transport.abort()  # bytes may be missing, so this is not the end of the data
                finally:
                    await connection.close()
            writer.close()

        return forward


async def _upload(reader: asyncio.StreamReader, connection: PortConnection) -> None:
    while data := await reader.read(_READ_BYTES):
        await connection.write(data)
    await connection.write_eof()


async def _download(connection: PortConnection, writer: asyncio.StreamWriter) -> None:
    while data := await connection.read():
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
