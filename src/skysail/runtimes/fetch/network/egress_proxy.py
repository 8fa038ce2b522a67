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

from skysail.runtimes.fetch.errors import FetchError, MayPass, in_words
from skysail.runtimes.fetch.network.proxy_env import Proxies
from skysail.runtimes.fetch.network.resolver import Guard

_LONGEST_HEAD = 64 * 1024
_SECONDS = 10.0
_CHUNK = 256 * 1024
_PORT_OF_A_PROXY = 3128
# Headers of one hop, which must not be forwarded.
_HOP_BY_HOP = {b"connection", b"proxy-connection", b"proxy-authorization", b"keep-alive"}
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_REFUSED = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class _Wish(msgspec.Struct, frozen=True, kw_only=True):
    """Target of a request. `head` is the request head for that server; empty for a tunnel."""

    url: str
    host: str
    port: int
    as_it_came: bytes
    head: bytes = b""

    @property
    def scheme(self) -> str:
        return "http" if self.head else "https"


class _Line(NamedTuple):
    """Open connection, the first bytes to send there, and the first bytes for the caller."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    first: bytes
    greeting: bytes


class Gate:
    """Egress proxy. It is open inside `async with`, and its connections end with it."""

    def __init__(self, guard: Guard, proxies: Proxies) -> None:
        self._guard = guard
        self._proxies = proxies
        self._tasks: set[asyncio.Task[None]] = set()
        self.failure: FetchError | None = None

    @property
    def url(self) -> str:
        host, port = self._server.sockets[0].getsockname()
        return f"http://{host}:{port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=_LONGEST_HEAD)
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
                line = await self._open(_read(await reader.readuntil(b"\r\n\r\n")))
            except FetchError as error:
                self.failure = error
                writer.write(_REFUSED)
                return
            except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                return  # the library closed the connection, or it is not one of ours
            with closing(line.writer):
                writer.write(line.greeting)
                line.writer.write(line.first)
                await _carry_both_ways((reader, writer), (line.reader, line.writer))

    async def _open(self, wish: _Wish) -> _Line:
        self._guard.check(wish.url)
        proxy = self._proxies.for_host(wish.scheme, wish.host)
        if proxy is None:
            found = await self._guard.addresses_of(wish.host, wish.port)
            reader, writer = await _connect(wish.host, found, wish.port)
            return _Line(reader, writer, wish.head, b"" if wish.head else _ESTABLISHED)
        await self._guard.judge_if_known(wish.host, wish.port)
        where = urlsplit(proxy)
        port = where.port or _PORT_OF_A_PROXY
        reader, writer = await _connect("the cluster's proxy", [where.hostname or ""], port)
        return _Line(reader, writer, _with_password(wish.as_it_came, where), b"")


async def _connect(name: str, addresses: list[str], port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first of these addresses that answers. Raises MayPass."""
    why = "no address found"
    for address in addresses:
        try:
            async with asyncio.timeout(_SECONDS):
                return await asyncio.open_connection(address, port)
        except TimeoutError:
            why = "no answer in time"
        except OSError as error:
            why = in_words(error)
    raise MayPass("Unreachable", f"The connection to {name} failed: {why}.")


def _with_password(head: bytes, proxy: SplitResult) -> bytes:
    if not proxy.username:
        return head
    password = b64encode(f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode())
    return head.removesuffix(b"\r\n") + b"Proxy-Authorization: Basic " + password + b"\r\n\r\n"


def _read(head: bytes) -> _Wish:
    """Parse the head of a request. Raises ValueError."""
    first, *fields = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    method, target, version = first.decode("ascii").split(" ")
    url = f"https://{target}" if method == "CONNECT" else target
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 80
    if method == "CONNECT":
        return _Wish(url=url, host=host, port=port, as_it_came=head)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    kept = [field for field in fields if field.partition(b":")[0].strip().lower() not in _HOP_BY_HOP]
    lines = (f"{method} {path} {version}".encode("ascii"), *kept, b"Connection: close", b"", b"")
    return _Wish(url=url, host=host, port=port, as_it_came=head, head=b"\r\n".join(lines))


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
