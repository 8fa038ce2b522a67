"""HTTP proxy with CONNECT and plain requests. The caller decides the destinations."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from skysail.local.cluster import tcp_proxy
from skysail.local.network.task_set import TaskSet

_MAX_HEAD_BYTES = 64 * 1024
_SECONDS = 10.0
# These headers belong to one connection, and a proxy has two.
_HOP_BY_HOP = {
    b"connection",
    b"proxy-connection",
    b"proxy-authorization",
    b"keep-alive",
    b"te",
    b"upgrade",
    b"skysail-destinations",
}
_REASONS = {400: "Bad Request", 403: "Forbidden", 502: "Bad Gateway"}
_HTTP_PORT = 80
# Networks that the destination must be in. The inner part of the egress proxy sets it for isolated pods.
_DESTINATIONS = b"skysail-destinations"
_NO_REQUEST = "This is Skysail's HTTP proxy for pods, and the request is not HTTP."
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


class ProxyError(Exception):
    """The request is rejected with this HTTP status. The text is for the pod's user."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class ProxyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Destination of a request. `head` is the request head to forward, empty through a tunnel.

    `destinations`: networks that the destination must be in, None for all.
    """

    host: str
    port: int
    head: bytes = b""
    as_it_came: bytes = b""
    destinations: str | None = None

    @property
    def where(self) -> str:
        return f"{self.host}:{self.port}"


class Upstream(NamedTuple):
    """Open connection, first bytes for the server, and first bytes for the client."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    first: bytes
    greeting: bytes


Opener = Callable[[ProxyRequest, str], Awaitable[Upstream]]


async def connect(request: ProxyRequest, addresses: list[str]) -> Upstream:
    """Connect to the first of these addresses that answers. Raises `ProxyError`."""
    message = "it has no address"
    for address in addresses:
        try:
            async with asyncio.timeout(_SECONDS):
                reader, writer = await asyncio.open_connection(address, request.port, limit=_MAX_HEAD_BYTES)
        except (OSError, TimeoutError) as error:
            message = str(error) or f"no answer within {_SECONDS:.0f} s"
        else:
            return Upstream(reader, writer, request.head, b"" if request.head else _ESTABLISHED)
    raise ProxyError(502, f"{request.where} cannot be reached: {message}.")


class HttpProxy:
    """Serves one listener until closed.

    `opener` gets the request and the client's address, and raises `ProxyError` to reject it.
    """

    def __init__(self, opener: Opener) -> None:
        self._open = opener
        self._task_set = TaskSet()
        self._server: asyncio.Server | None = None

    async def serve(self, listener: socket.socket) -> None:
        """Start serving. Returns when connections are accepted."""
        self._server = await asyncio.start_server(self._accept, sock=listener, limit=_MAX_HEAD_BYTES)

    async def close(self) -> None:
        """Stop serving, and close all connections. Idempotent."""
        if self._server is not None:
            self._server.close()
        await self._task_set.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._task_set.start(self._carry(reader, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            try:
                caller = str(writer.get_extra_info("peername")[0])
                upstream = await self._open(await _read(reader), caller)
            except ProxyError as refusal:
                writer.write(_page(refusal))
                return
            except OSError:
                return  # the pod has disconnected
            with closing(upstream.writer):
                writer.write(upstream.greeting)
                upstream.writer.write(upstream.first)
                await tcp_proxy.pipe_both((reader, writer), (upstream.reader, upstream.writer))


async def _read(reader: asyncio.StreamReader) -> ProxyRequest:
    try:
        async with asyncio.timeout(_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError) as error:
        raise ProxyError(400, _NO_REQUEST) from error
    return parse(head)


def restrict(head: bytes, destinations: str) -> bytes:
    """Return the head of a request with these destinations, whatever the client wrote there."""
    first, *fields = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    kept = [field for field in fields if not _is_destinations(field)]
    return b"\r\n".join((first, _DESTINATIONS + b": " + destinations.encode("ascii"), *kept, b"", b""))


def _is_destinations(field: bytes) -> bool:
    return field.partition(b":")[0].strip().lower() == _DESTINATIONS


def parse(head: bytes) -> ProxyRequest:
    """Parse the head of a request, which ends with an empty line. Raises `ProxyError`."""
    first, *fields = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    try:
        method, target, version = first.decode("ascii").split(" ")
        # An authority is parsed like a URL if two slashes precede it.
        parts = urlsplit(f"//{target}" if method == "CONNECT" else target)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ProxyError(400, _NO_REQUEST) from error
    named = [field.partition(b":")[2].strip().decode("latin-1") for field in fields if _is_destinations(field)]
    destinations = named[0] if named else None
    if method == "CONNECT" and host and port and parts.netloc == target:
        return ProxyRequest(host=host, port=port, as_it_came=head, destinations=destinations)
    if parts.scheme != "http" or not host:
        raise ProxyError(400, f"This proxy accepts CONNECT host:port and absolute http:// URLs, not {target[:200]!r}.")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    kept = [field for field in fields if field.partition(b":")[0].strip().lower() not in _HOP_BY_HOP]
    lines = (f"{method} {path} {version}".encode("ascii"), *kept, b"Connection: close", b"", b"")
    return ProxyRequest(
        host=host, port=port or _HTTP_PORT, head=b"\r\n".join(lines), as_it_came=head, destinations=destinations
    )


def _page(proxy_error: ProxyError) -> bytes:
    body = f"{proxy_error}\n".encode()
    status = f"HTTP/1.1 {proxy_error.status} {_REASONS[proxy_error.status]}"
    kind = "Content-Type: text/plain; charset=utf-8"
    head = (status, kind, f"Content-Length: {len(body)}", "Connection: close", "", "")
    return "\r\n".join(head).encode() + body
