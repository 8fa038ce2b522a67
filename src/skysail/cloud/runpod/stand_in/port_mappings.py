"""Mapped TCP ports of a pod: a public port of 127.0.0.1 for each, as RunPod maps them to a port of the machine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from skysail.cloud.errors import ProviderError
from skysail.cloud.provider import PortConnection

_HOST = "127.0.0.1"
_CHUNK = 64 * 1024

Dial = Callable[[int], Awaitable[PortConnection]]


class PortMappings:
    """Listeners of one pod. `public` has the public port of each private one."""

    def __init__(self, dial: Dial) -> None:
        self._dial = dial
        self._servers: list[asyncio.Server] = []
        self.public: dict[int, int] = {}

    async def open(self, ports: tuple[str, ...]) -> None:
        """Map the TCP ports among these, such as `22/tcp`. Ports that are mapped stay as they are."""
        for text in ports:
            number, _, kind = text.partition("/")
            if kind == "tcp" and int(number) not in self.public:
                server = await asyncio.start_server(self._handler(int(number)), _HOST, 0)
                self._servers.append(server)
                self.public[int(number)] = int(server.sockets[0].getsockname()[1])

    def close(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()
        self.public.clear()

    def _handler(self, port: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                connection = await self._dial(port)
            except ProviderError:
                writer.transport.abort()
                return
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(_copy_in(reader, connection))
                    tasks.create_task(_copy_out(connection, writer))
                writer.close()
            except* (OSError, ProviderError):
                writer.transport.abort()
            finally:
                await connection.close()

        return serve


async def _copy_in(reader: asyncio.StreamReader, connection: PortConnection) -> None:
    while data := await reader.read(_CHUNK):
        await connection.write(data)
    await connection.write_eof()


async def _copy_out(connection: PortConnection, writer: asyncio.StreamWriter) -> None:
    while data := await connection.read():
        writer.write(data)
        await writer.drain()
    writer.write_eof()
