"""DNS of names outside the cluster: the cluster's name server asks the outer process, which asks the machine's.

Between the two it is DNS over TCP, one query per connection, on a listener inside the local cluster.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from contextlib import closing
from typing import Protocol

from skysail.local.addresses import CLUSTER_IP
from skysail.local.network import dns_wire
from skysail.local.network.dns_wire import NotAQuery, QueryError
from skysail.local.network.task_set import TaskSet

PORT = 3053
_DNS_PORT = 53
_MAX_MESSAGE_BYTES = 65535
_SECONDS = 2.0
_ALL_SECONDS = 4.0  # resolvers in pods give up after 5


class Upstream(Protocol):
    async def ask(self, message: bytes) -> bytes | None:
        """Return the answer to this query. Returns None if no server answers."""
        ...


def nameservers(resolv_conf: str) -> list[tuple[str, int]]:
    """Return the name servers of a file /etc/resolv.conf, in its order."""
    lines = (line.split() for line in resolv_conf.splitlines())
    return [(words[1], _DNS_PORT) for words in lines if len(words) > 1 and words[0] == "nameserver"]


class ForwarderClient:
    """Inner part: asks the server at an address of the local cluster."""

    def __init__(self, host: str = CLUSTER_IP, port: int = PORT) -> None:
        self._where = (host, port)

    async def ask(self, message: bytes) -> bytes | None:
        try:
            async with asyncio.timeout(_ALL_SECONDS):
                return await _by_stream(self._where, message)
        except (OSError, TimeoutError):
            return None


class HostResolver:
    """Outer part: asks the machine's name servers, one after the other."""

    def __init__(self, servers: Sequence[tuple[str, int]]) -> None:
        self._servers = servers

    async def ask(self, message: bytes) -> bytes | None:
        for server in self._servers:
            try:
                async with asyncio.timeout(_SECONDS):
                    answer: bytes | None = await _by_datagram(server, message)
                    if answer is not None and dns_wire.is_truncated(answer):
                        answer = await _by_stream(server, message)
            except (OSError, TimeoutError):
                continue
            if answer is not None:
                return answer
        return None


class ForwarderServer:
    """Serves an upstream on a listener. Only valid queries are forwarded to a name server."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._task_set = TaskSet()
        self._server: asyncio.Server | None = None

    async def serve(self, listener: socket.socket) -> None:
        """Start serving. Returns when connections are accepted."""
        self._server = await asyncio.start_server(self._accept, sock=listener, limit=2 * _MAX_MESSAGE_BYTES)

    async def close(self) -> None:
        """Stop serving, and close all connections. Idempotent."""
        if self._server is not None:
            self._server.close()
        await self._task_set.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._task_set.start(self._exchange(reader, writer))

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            try:
                async with asyncio.timeout(_ALL_SECONDS):
                    message = await dns_wire.receive(reader)
                    dns_wire.read(message)
                    answer = await self._upstream.ask(message)
            except (asyncio.IncompleteReadError, NotAQuery, QueryError, OSError, TimeoutError):
                return
            if answer is not None:
                writer.write(dns_wire.tcp_frame(answer))


async def _by_datagram(server: tuple[str, int], message: bytes) -> bytes:
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET6 if ":" in server[0] else socket.AF_INET, socket.SOCK_DGRAM) as connection:
        connection.setblocking(False)
        await loop.sock_connect(connection, server)
        await loop.sock_sendall(connection, message)
        while True:
            answer = await loop.sock_recv(connection, _MAX_MESSAGE_BYTES)
            if answer[:2] == message[:2]:  # otherwise a late answer to an earlier query
                return answer


async def _by_stream(server: tuple[str, int], message: bytes) -> bytes | None:
    reader, writer = await asyncio.open_connection(*server, limit=2 * _MAX_MESSAGE_BYTES)
    with closing(writer):
        writer.write(dns_wire.tcp_frame(message))
        try:
            return await dns_wire.receive(reader)
        except asyncio.IncompleteReadError:
            return None
