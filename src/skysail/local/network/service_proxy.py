"""Proxy of ClusterIPs: one listener for each port of each Service, which forwards connections to its endpoints.

TCP only, without the client's address and without session affinity.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping

from skysail.local.network.service_endpoints import ServiceEndpoint
from skysail.local.network.task_set import TaskSet
from skysail.local.network.tcp_pipe import Pipe

# A pod that was just deleted does not reject connections, it does not answer.
_DIAL_SECONDS = 2.0
_BACKLOG = 512

log = logging.getLogger(__name__)
Opener = Callable[[ServiceEndpoint], Awaitable[socket.socket]]
# Whether the first address may connect to the second one at this port.
Allows = Callable[[str, str, int], bool]


def allow_all(_source: str, _destination: str, _port: int) -> bool:
    return True


class ServiceProxy:
    """Listeners of all Services. `listener` opens a listening socket, or raises OSError.

    `allows` judges each connection: the endpoint sees the address of this proxy, so nothing after it could.
    """

    def __init__(self, listener: Opener, allows: Allows = allow_all) -> None:
        self._listener = listener
        self._allows = allows
        self._ports: dict[ServiceEndpoint, _Port] = {}
        self._servers: dict[ServiceEndpoint, asyncio.Server] = {}
        self._task_set = TaskSet()

    async def sync(self, routes: Mapping[ServiceEndpoint, tuple[ServiceEndpoint, ...]]) -> None:
        """Serve exactly these routes. Open connections are kept. Call it in one task at a time.

        A port without endpoints has no listener, so that connections are refused at once.
        """
        served = {service_endpoint: endpoints for service_endpoint, endpoints in routes.items() if endpoints}
        for service_endpoint in self._servers.keys() - served.keys():
            self._servers.pop(service_endpoint).close()
            del self._ports[service_endpoint]
        for service_endpoint, endpoints in served.items():
            if service_endpoint in self._ports:
                self._ports[service_endpoint].endpoints = endpoints
            else:
                await self._open(service_endpoint, endpoints)

    async def close(self) -> None:
        await self.sync({})
        await self._task_set.close()

    async def _open(self, service_endpoint: ServiceEndpoint, endpoints: tuple[ServiceEndpoint, ...]) -> None:
        port = _Port(endpoints, self._allows)
        try:
            listener = await self._listener(service_endpoint)
        except OSError as error:
            log.warning(
                "service listener failed, service not served",
                extra={"address": f"{service_endpoint.address}:{service_endpoint.port}", "why": str(error)},
            )
            return
        loop = asyncio.get_running_loop()
        self._servers[service_endpoint] = await loop.create_server(
            lambda: _ClientProtocol(port, self._task_set), sock=listener, backlog=_BACKLOG
        )
        self._ports[service_endpoint] = port


class _Port:
    """One port of one Service: its endpoints, and the next one."""

    def __init__(self, endpoints: tuple[ServiceEndpoint, ...], allows: Allows) -> None:
        self.endpoints = endpoints
        self._allows = allows
        self._turn = 0

    def in_turn(self, source: str) -> list[ServiceEndpoint]:
        """Return all endpoints that the client may connect to, starting with another one each time."""
        first = self._turn = (self._turn + 1) % len(self.endpoints)
        rows = self.endpoints[first:] + self.endpoints[:first]
        return [each for each in rows if self._allows(source, each.address, each.port)]


class _ClientProtocol(Pipe):
    """A connection to a ClusterIP."""

    def __init__(self, port: _Port, task_set: TaskSet) -> None:
        super().__init__()
        self._port = port
        self._task_set = task_set

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self._task_set.start(self._find_endpoint(str(peer[0]) if peer else ""))

    async def _find_endpoint(self, source: str) -> None:
        loop = asyncio.get_running_loop()
        for service_endpoint in self._port.in_turn(source):
            try:
                async with asyncio.timeout(_DIAL_SECONDS):
                    _, endpoint = await loop.create_connection(Pipe, service_endpoint.address, service_endpoint.port)
            except (OSError, TimeoutError):
                continue
            self.join(endpoint)
            return
        self.reset()
