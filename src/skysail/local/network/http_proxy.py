"""An HTTP proxy that knows CONNECT and plain requests. Where a request may go is decided by who uses it."""

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
# These speak of one connection, and there are two.
_HOP_BY_HOP = {b"connection", b"proxy-connection", b"proxy-authorization", b"keep-alive", b"te", b"upgrade"}
_REASONS = {400: "Bad Request", 403: "Forbidden", 502: "Bad Gateway"}
_HTTP_PORT = 80
_NO_REQUEST = "This is Skysail's HTTP proxy for pods, and that was no HTTP request."
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


class ProxyError(Exception):
    """The answer is no, with this HTTP status; the text is a sentence for the pod's user."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class ProxyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Where a request wants to go. `head` is what a server there expects to hear first, nothing through a tunnel."""

    host: str
    port: int
    head: bytes = b""
    as_it_came: bytes = b""

    @property
    def where(self) -> str:
        return f"{self.host}:{self.port}"


class Upstream(NamedTuple):
    """An open connection, what is said there first, and what the caller hears first."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    first: bytes
    greeting: bytes


Opener = Callable[[ProxyRequest, str], Awaitable[Upstream]]


async def connect(request: ProxyRequest, addresses: list[str]) -> Upstream:
    """To the first of these addresses that answers. Raises `ProxyError`."""
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
    """Serves one listener until it is closed. `opener` gets the wish and the caller's address, and may refuse."""

    def __init__(self, opener: Opener) -> None:
        self._open = opener
        self._task_set = TaskSet()
        self._server: asyncio.Server | None = None

    async def serve(self, listener: socket.socket) -> None:
        """Returns when it accepts connections."""
        self._server = await asyncio.start_server(self._accept, sock=listener, limit=_MAX_HEAD_BYTES)

    async def close(self) -> None:
        """Ends its connections, too. May be called twice."""
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
                return  # the pod has gone
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


def parse(head: bytes) -> ProxyRequest:
    """The wish in the head of a request, which ends with an empty line. Raises `ProxyError`."""
    first, *fields = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    try:
        method, target, version = first.decode("ascii").split(" ")
        # The authority alone is no URL; with slashes before it it is read like one.
        parts = urlsplit(f"//{target}" if method == "CONNECT" else target)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ProxyError(400, _NO_REQUEST) from error
    if method == "CONNECT" and host and port and parts.netloc == target:
        return ProxyRequest(host=host, port=port, as_it_came=head)
    if parts.scheme != "http" or not host:
        raise ProxyError(400, f"This proxy takes CONNECT host:port and whole http:// addresses, not {target[:200]!r}.")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    kept = [field for field in fields if field.partition(b":")[0].strip().lower() not in _HOP_BY_HOP]
    lines = (f"{method} {path} {version}".encode("ascii"), *kept, b"Connection: close", b"", b"")
    return ProxyRequest(host=host, port=port or _HTTP_PORT, head=b"\r\n".join(lines), as_it_came=head)


def _page(proxy_error: ProxyError) -> bytes:
    body = f"{proxy_error}\n".encode()
    status = f"HTTP/1.1 {proxy_error.status} {_REASONS[proxy_error.status]}"
    kind = "Content-Type: text/plain; charset=utf-8"
    head = (status, kind, f"Content-Length: {len(body)}", "Connection: close", "", "")
    return "\r\n".join(head).encode() + body
