"""A stand-in for Modal outside the local cluster, and the egress proxy as the only way to it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from ipaddress import ip_network
from typing import TYPE_CHECKING

from skysail.local.cluster import tcp_proxy
from skysail.local.network import egress_proxy
from skysail.local.network.egress_policy import EgressPolicy
from skysail.local.network.http_proxy import HttpProxy, ProxyRequest, Upstream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

# An address of the machine that nothing else uses. A policy allows such an address only by itself.
OUTSIDE = "127.0.0.5"


class CountedProxy:
    """The outer part of the egress proxy, with a list of what it was asked for."""

    def __init__(self, *allowed: str) -> None:
        policy = EgressPolicy(exceptions=tuple(ip_network(address) for address in allowed))
        self._open = egress_proxy.host_side(policy)
        self.asked: list[str] = []
        self.proxy = HttpProxy(self._count)

    async def _count(self, request: ProxyRequest, caller: str) -> Upstream:
        self.asked.append(request.where)
        return await self._open(request, caller)


@contextlib.asynccontextmanager
async def forwarded(path: Path) -> AsyncIterator[int]:
    """Listen on TCP for a server that has only a Unix socket. Yields the port."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            inner = await asyncio.open_unix_connection(str(path))
            with contextlib.closing(inner[1]):
                await tcp_proxy.pipe_both((reader, writer), inner)

    server = await asyncio.start_server(accept, OUTSIDE, 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def listener() -> socket.socket:
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    made.listen()
    return made
