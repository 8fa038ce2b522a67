"""Ways into a sandbox: a listener on 127.0.0.1 for each open port, and one for requests with a connect token."""

from __future__ import annotations

import asyncio
import base64
import hmac
import secrets
import ssl
from collections.abc import Callable

import msgspec
from modal_proto import api_pb2

from skysail.cloud.errors import ProviderError
from skysail.cloud.modal.stand_in.sandbox import Sandbox
from skysail.cloud.provider import PortConnection

_HOST = "127.0.0.1"
_MAX_HEAD = 64 * 1024
_DEFAULT_PORT = 8080
_DENIED = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_BAD_GATEWAY = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class ConnectToken(msgspec.Struct, frozen=True):
    token: str
    port: int
    user_metadata: str


class Tunnels:
    """Listeners of one sandbox. They close with it."""

    def __init__(self, sandbox: Sandbox, tls: ssl.SSLContext, report_port: Callable[[int], None]) -> None:
        self._sandbox = sandbox
        self._tls = tls
        self._report_port = report_port
        self._servers: list[asyncio.Server] = []
        self._tokens: list[ConnectToken] = []
        self._entrance: asyncio.Server | None = None
        self.data: list[api_pb2.TunnelData] = []

    async def open(self) -> None:
        """Open a listener for each port that the sandbox was created with."""
        for spec in self._sandbox.spec.definition.open_ports.ports:
            listener = await self._listen(spec.port, with_tls=not spec.unencrypted)
            tunnel = api_pb2.TunnelData(host=_HOST, container_port=spec.port)
            if spec.unencrypted:
                tunnel.unencrypted_host, tunnel.unencrypted_port = _HOST, listener
            else:
                tunnel.port = listener
            self.data.append(tunnel)

    async def connect_token(self, port: int, user_metadata: str) -> tuple[str, str]:
        """Return a URL and a token with which HTTP requests reach this port of the sandbox."""
        if self._entrance is None:
            self._entrance = await asyncio.start_server(self._enter, _HOST, 0, ssl=self._tls)
            self._servers.append(self._entrance)
            self._report_port(_port(self._entrance))
        token = ConnectToken(secrets.token_urlsafe(32), port or _DEFAULT_PORT, user_metadata)
        self._tokens.append(token)
        return f"https://{_HOST}:{_port(self._entrance)}", token.token

    def close(self) -> None:
        for server in self._servers:
            server.close()

    async def _listen(self, port: int, *, with_tls: bool) -> int:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._forward(reader, writer, port)

        server = await asyncio.start_server(serve, _HOST, 0, ssl=self._tls if with_tls else None)
        self._servers.append(server)
        self._report_port(_port(server))
        return _port(server)

    async def _enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Check the token of the first request of a connection, and tell the program who sends it."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            writer.close()
            return
        token = self._token(head)
        if token is None:
            writer.write(_DENIED)
            writer.close()
            return
        if token.user_metadata:
            line = base64.b64encode(token.user_metadata.encode())
            head = head[:-2] + b"X-Verified-User-Data: " + line + b"\r\n\r\n"
        await self._forward(reader, writer, token.port, head)

    def _token(self, head: bytes) -> ConnectToken | None:
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"authorization":
                given = value.strip().removeprefix(b"Bearer ").strip()
                found = [token for token in self._tokens if hmac.compare_digest(token.token.encode(), given)]
                return found[0] if found else None
        return None

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int, head: bytes = b""
    ) -> None:
        program = self._sandbox.program
        try:
            connection = await program.provider.connect(program.run.pod, port, from_outside=True)
        except ProviderError:
            if head:
                writer.write(_BAD_GATEWAY)
            writer.close()
            return
        try:
            if head:
                await connection.write(head)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_copy_in(reader, connection))
                tasks.create_task(_copy_out(connection, writer))
        except* (OSError, ProviderError):
            pass
        finally:
            await connection.close()
            writer.close()


def _port(server: asyncio.Server) -> int:
    return int(server.sockets[0].getsockname()[1])


async def _copy_in(reader: asyncio.StreamReader, connection: PortConnection) -> None:
    while data := await reader.read(_MAX_HEAD):
        await connection.write(data)
    await connection.write_eof()


async def _copy_out(connection: PortConnection, writer: asyncio.StreamWriter) -> None:
    while data := await connection.read():
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
    else:
        writer.close()
