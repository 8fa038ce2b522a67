"""One-shot exec and connections to ports of a pod."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Coroutine

from skysail.cloud import outbound
from skysail.cloud.errors import Gone, Rejected, Unsupported
from skysail.cloud.provider import Output, PortConnection
from skysail.cloud.runpod import api
from skysail.cloud.runpod.client import Endpoint, RunPodClient

PROXY_DOMAIN = "proxy.runpod.net"
_EXEC_SECONDS = 25
_TIMED_OUT = 124
_CONNECT_SECONDS = 10.0
_READ_BYTES = 65536
_MAX_HEAD_BYTES = 65536
_HEADERS = re.compile(rb"(?im)^(?:host|connection):[^\r\n]*\r\n")


class OneShotExec:
    """A command that runs to its end before its output arrives. It has no input and no terminal."""

    def __init__(self, client: RunPodClient, pod: str, command: tuple[str, ...], now: float) -> None:
        body = api.ExecCommand(command=command, timeout_seconds=_EXEC_SECONDS)
        self._now = now
        self._call = asyncio.create_task(client.exec(pod, body))

    async def begin(self) -> None:
        """Wait for the answer. Raises errors of `cloud.errors`."""
        try:
            await asyncio.shield(self._call)
        except Gone as error:
            raise Unsupported(
                "This RunPod account has no command for exec, or the pod is gone: print to the log instead."
            ) from error

    async def write(self, data: bytes) -> None:  # noqa: ARG002 (required by the interface)
        return

    async def close_stdin(self) -> None:
        return

    async def output(self) -> AsyncIterator[Output]:
        result = await asyncio.shield(self._call)
        if result.stdout:
            yield Output("stdout", self._now, result.stdout.encode())
        errors = result.stderr
        if result.timed_out:
            errors += f"The command was still running after {_EXEC_SECONDS} seconds, the maximum at RunPod.\n"
        if errors:
            yield Output("stderr", self._now, errors.encode())

    async def resize(self, width: int, height: int) -> None:  # noqa: ARG002 (required by the interface)
        return

    async def wait(self) -> int:
        result = await asyncio.shield(self._call)
        return _TIMED_OUT if result.timed_out or result.exit_code is None else result.exit_code

    async def kill(self) -> None:
        self._call.cancel()

    async def close(self) -> None:
        self._call.cancel()
        await asyncio.gather(self._call, return_exceptions=True)


class TcpConnection:
    """A TCP connection to a mapped port, or to the proxy of HTTP ports."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        try:
            return await self._reader.read(_READ_BYTES)
        except OSError:
            return b""

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def write_eof(self) -> None:
        if self._writer.can_write_eof():
            self._writer.write_eof()

    async def close(self) -> None:
        self._writer.close()


class ProxiedConnection(TcpConnection):
    """A connection to an HTTP port through the proxy, which chooses the pod by the host name of the request.

    One request per connection: only the head of the first one can be changed.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        super().__init__(reader, writer)
        self._host = host
        self._head: bytes | None = b""

    async def write(self, data: bytes) -> None:
        if self._head is None:
            await super().write(data)
            return
        self._head += data
        head, end, rest = self._head.partition(b"\r\n\r\n")
        if not end:
            if len(self._head) > _MAX_HEAD_BYTES:
                raise Rejected("NotHttp", "This port of the pod answers HTTP only: map it as tcp in runpod.io/ports.")
            return
        first, _, headers = (head + b"\r\n").partition(b"\r\n")
        own = f"Host: {self._host}\r\nConnection: close\r\n".encode()
        self._head = None
        await super().write(first + b"\r\n" + own + _HEADERS.sub(b"", headers) + b"\r\n" + rest)


async def connect(endpoint: Endpoint, pod: api.Pod, port: int) -> PortConnection:
    """Connect to a port of a pod: directly to a mapped TCP port, else through the proxy of HTTP ports."""
    mapped = [row for row in (pod.runtime.ports or () if pod.runtime else ()) if row.private == port]
    for row in mapped:
        if row.type == "tcp" and row.ip and row.public:
            return TcpConnection(*await _open(outbound.open_connection(row.ip, row.public), port))
    if not any(row.type == "http" for row in mapped):
        raise Rejected("PortNotExposed", f"RunPod does not expose port {port}: add it to runpod.io/ports.")
    host = f"{pod.id}-{port}.{PROXY_DOMAIN}"
    path = endpoint.socket
    if path is not None:
        opened = await _open(asyncio.open_unix_connection(str(path)), port)
    else:
        context = ssl.create_default_context(cadata=endpoint.ca or None)
        opened = await _open(outbound.open_connection(host, 443, context), port)
    return ProxiedConnection(*opened, host)


async def _open(
    opening: Coroutine[None, None, tuple[asyncio.StreamReader, asyncio.StreamWriter]], port: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            return await opening
    except (OSError, TimeoutError) as error:
        raise Rejected("PortUnreachable", f"Nothing answers at port {port} of the pod: {error}.") from error
