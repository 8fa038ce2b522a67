"""One-shot exec and connections to ports of a pod."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import ssl
from collections.abc import AsyncIterator, Coroutine
from urllib.parse import urlsplit

from skysail.cloud import outbound
from skysail.cloud.errors import Gone, OutcomeUnknown, Rejected, Unsupported
from skysail.cloud.provider import Output, PortConnection
from skysail.cloud.runpod import api
from skysail.cloud.runpod.client import Endpoint, RunPodClient

PROXY_DOMAIN = "proxy.runpod.net"
_EXEC_SECONDS = 25
_TIMED_OUT = 124
_HTTP, _HTTPS = 80, 443
_MAX_PORT = 65535
_NOT_ALLOWED = "MethodNotAllowed"
_CONNECT_SECONDS = 10.0
_READ_BYTES = 65536
_MAX_HEAD_BYTES = 65536
_HOST = re.compile(rb"(?im)^host:[^\r\n]*\r\n")
_CONNECTION = re.compile(rb"(?im)^connection:[^\r\n]*\r\n")
_UPGRADE = re.compile(rb"(?im)^upgrade:")


class OneShotExec:
    """A command that runs to its end before its output arrives. It has no input and no terminal."""

    def __init__(self, client: RunPodClient, pod: str, command: tuple[str, ...], now: float) -> None:
        body = api.ExecCommand(command=command, timeout_seconds=_EXEC_SECONDS)
        self._now = now
        self._client = client
        self._pod = pod
        self._call = asyncio.create_task(client.exec(pod, body))

    async def begin(self) -> None:
        """Wait for the answer. Raises errors of `cloud.errors`."""
        try:
            await asyncio.shield(self._call)
        except Gone as error:
            # The same answer means an unknown path and an unknown pod.
            await self._client.get_pod(self._pod)
            raise Unsupported("RunPod's API has no exec for this account: print to the log instead.") from error
        except Rejected as error:
            if error.reason == _NOT_ALLOWED:
                raise Unsupported("RunPod's API has no exec for this account: print to the log instead.") from error
            raise
        if not self._call.result().is_complete:
            raise OutcomeUnknown("RunPod has answered exec without an exit code: print to the log instead.")

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
        except OSError as error:
            raise OutcomeUnknown(
                f"The connection to the pod broke, so its last bytes may be missing: {error}."
            ) from error

    async def write(self, data: bytes) -> None:
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            raise Gone("The pod has closed the connection.") from error

    async def write_eof(self) -> None:
        if self._writer.can_write_eof():
            with contextlib.suppress(OSError):
                self._writer.write_eof()

    async def close(self) -> None:
        self._writer.close()


class ProxiedConnection(TcpConnection):
    """A connection to an HTTP port through the proxy, which chooses the pod by the host name of the request.

    One request per connection, because only the head of the first one can be changed; or one WebSocket.
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
        own, headers = f"Host: {self._host}\r\n".encode(), _HOST.sub(b"", headers)
        if not _UPGRADE.search(headers):
            own, headers = own + b"Connection: close\r\n", _CONNECTION.sub(b"", headers)
        self._head = None
        await super().write(first + b"\r\n" + own + headers + b"\r\n" + rest)


async def connect(endpoint: Endpoint, pod: api.Pod, port: int) -> PortConnection:
    """Connect to a port of a pod: directly to a mapped TCP port, else through the proxy of HTTP ports.

    Raises Rejected if the port is not exposed, not mapped yet, or does not answer.
    """
    mapped = [row for row in (pod.runtime.ports or () if pod.runtime else ()) if row.private == port]
    for row in mapped:
        if row.type == "tcp" and row.ip and row.public:
            _check_mapping(endpoint, row.ip, row.public, port)
            return TcpConnection(*await _open(outbound.open_connection(row.ip, row.public), port))
    if f"{port}/http" not in pod.ports and not any(row.type == "http" for row in mapped):
        if f"{port}/tcp" in pod.ports:
            raise Rejected("PortNotMapped", f"RunPod has not mapped port {port} yet: retry in a moment.")
        raise Rejected("PortNotExposed", f"RunPod does not expose port {port}: add it to runpod.io/ports.")
    host = f"{pod.id}-{port}.{PROXY_DOMAIN}"
    return ProxiedConnection(*await _open(_open_proxy(endpoint, host), port), host)


async def _open_proxy(endpoint: Endpoint, host: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the proxy. That of a stand-in is the stand-in itself."""
    if endpoint.socket is not None:
        return await asyncio.open_unix_connection(str(endpoint.socket))
    context = ssl.create_default_context(cadata=endpoint.ca or None)
    if not endpoint.is_stand_in:
        return await outbound.open_connection(host, _HTTPS, context)
    parts = urlsplit(endpoint.url)
    is_https = parts.scheme == "https"
    port = parts.port or (_HTTPS if is_https else _HTTP)
    return await asyncio.open_connection(parts.hostname, port, ssl=context if is_https else None)


def _check_mapping(endpoint: Endpoint, address: str, public: int, port: int) -> None:
    """Refuse a mapping that cannot be real, such as one into the operator's own network. A stand-in is local."""
    try:
        is_public = ipaddress.ip_address(address).is_global or endpoint.is_stand_in
    except ValueError:
        is_public = False
    if not is_public:
        raise Rejected("PortUnreachable", f"RunPod maps port {port} to an address that is not public.")
    if not 0 < public <= _MAX_PORT:
        raise Rejected("PortUnreachable", f"RunPod maps port {port} to a number that no port has.")


async def _open(
    opening: Coroutine[None, None, tuple[asyncio.StreamReader, asyncio.StreamWriter]], port: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            return await opening
    except (OSError, TimeoutError) as error:
        raise Rejected("PortUnreachable", f"Nothing answers at port {port} of the pod: {error}.") from error
