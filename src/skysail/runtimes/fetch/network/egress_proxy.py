"""Egress proxy on the loopback, for libraries that open connections themselves.

It supports CONNECT and plain requests, one per connection. It connects only to addresses that the policy has checked,
or to the cluster's proxy. `failure` keeps the last rejection or error, because libraries do not report the cause.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from contextlib import closing
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from skysail.runtimes.fetch.errors import FetchError, TransientError, in_words
from skysail.runtimes.fetch.network.proxy_env import ProxyEnv
from skysail.runtimes.fetch.network.resolver import AddressGuard

_MAX_HEAD_BYTES = 64 * 1024
_SECONDS = 10.0
_CHUNK = 256 * 1024
_PORT_OF_A_PROXY = 3128
# Headers of one hop, which must not be forwarded.
_HOP_BY_HOP = {b"connection", b"proxy-connection", b"proxy-authorization", b"keep-alive"}
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_REFUSED = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class _ProxyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Target of a request. `head` is the request head for that server; empty for a tunnel."""

    url: str
    host: str
    port: int
    as_it_came: bytes
    head: bytes = b""

    @property
    def scheme(self) -> str:
        return "http" if self.head else "https"


class _Upstream(NamedTuple):
    """Open connection, the first bytes to send there, and the first bytes for the caller."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    first: bytes
    greeting: bytes


class EgressProxy:
    """Egress proxy. It is open inside `async with`, and its connections end with it."""

    def __init__(self, address_guard: AddressGuard, proxy_env: ProxyEnv) -> None:
        self._address_guard = address_guard
        self._proxy_env = proxy_env
        self._tasks: set[asyncio.Task[None]] = set()
        self.failure: FetchError | None = None

    @property
    def url(self) -> str:
        host, port = self._server.sockets[0].getsockname()
        return f"http://{host}:{port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=_MAX_HEAD_BYTES)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._server.close()
        await asyncio.sleep(0)  # lets the server register connections that it just accepted
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # lets the transports close

    def forget(self) -> None:
        """Clear the failure before another attempt."""
        self.failure = None

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._carry(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            try:
                upstream = await self._open(_read(await reader.readuntil(b"\r\n\r\n")))
            except FetchError as error:
                self.failure = error
                writer.write(_REFUSED)
                return
            except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                return  # the library closed the connection, or it is not one of ours
            with closing(upstream.writer):
                writer.write(upstream.greeting)
                upstream.writer.write(upstream.first)
                await _carry_both_ways((reader, writer), (upstream.reader, upstream.writer))

    async def _open(self, request: _ProxyRequest) -> _Upstream:
        self._address_guard.check(request.url)
        proxy = self._proxy_env.for_host(request.scheme, request.host)
        if proxy is None:
            found = await self._address_guard.addresses_of(request.host, request.port)
            reader, writer = await _connect(request.host, found, request.port)
            return _Upstream(reader, writer, request.head, b"" if request.head else _ESTABLISHED)
        await self._address_guard.check_literal_address(request.host, request.port)
        where = urlsplit(proxy)
        port = where.port or _PORT_OF_A_PROXY
        reader, writer = await _connect("the cluster's proxy", [where.hostname or ""], port)
        return _Upstream(reader, writer, _with_password(request.as_it_came, where), b"")


async def _connect(name: str, addresses: list[str], port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first of these addresses that answers. Raises TransientError."""
    message = "no address found"
    for address in addresses:
        try:
            async with asyncio.timeout(_SECONDS):
                return await asyncio.open_connection(address, port)
        except TimeoutError:
            message = "no answer in time"
        except OSError as error:
            message = in_words(error)
    raise TransientError("Unreachable", f"The connection to {name} failed: {message}.")


def _with_password(head: bytes, proxy: SplitResult) -> bytes:
    if not proxy.username:
        return head
    password = b64encode(f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode())
    return head.removesuffix(b"\r\n") + b"Proxy-Authorization: Basic " + password + b"\r\n\r\n"


def _read(head: bytes) -> _ProxyRequest:
    """Parse the head of a request. Raises ValueError."""
    first, *fields = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    method, target, version = first.decode("ascii").split(" ")
    url = f"https://{target}" if method == "CONNECT" else target
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 80
    if method == "CONNECT":
        return _ProxyRequest(url=url, host=host, port=port, as_it_came=head)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    kept = [field for field in fields if field.partition(b":")[0].strip().lower() not in _HOP_BY_HOP]
    lines = (f"{method} {path} {version}".encode("ascii"), *kept, b"Connection: close", b"", b"")
    return _ProxyRequest(url=url, host=host, port=port, as_it_came=head, head=b"\r\n".join(lines))


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _carry_both_ways(one: Stream, other: Stream) -> None:
    async with asyncio.TaskGroup() as both:
        both.create_task(_carry(one[0], other[1]))
        both.create_task(_carry(other[0], one[1]))


async def _carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Copy until the source ends, then close the target's write side. An error ends both directions."""
    try:
        while chunk := await source.read(_CHUNK):
            target.write(chunk)
            await target.drain()
        target.write_eof()
    except (OSError, RuntimeError):
        target.transport.abort()
