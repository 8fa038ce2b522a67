"""Listening sockets of the bridge: one for each route, opened and closed as claims come and go."""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from typing import Any

from aiohttp import web

from skysail.base.open_files import CallerLimits, LimitedListener
from skysail.bridge.http_proxy import HttpProxy
from skysail.bridge.proxies import Proxies
from skysail.bridge.raw_proxy import RawProxy
from skysail.bridge.routes import Route
from skysail.cloud import web_app

_BACKLOG = 512
# aiohttp takes 0 as no timeout, and waits for ever for a connection that never sends a whole request.
_SHUTDOWN_SECONDS = 0.01
# The port of a web App is open for this long after its route is gone: until then, Services may still send connections
# there, and the App answers on for the claim that has taken it over.
_LINGER_SECONDS = 5.0
# A connection or a request that arrived just before a port was closed has begun after this long.
_BEGIN_SECONDS = 0.05
# aiohttp reads the rest of a body for this long after its answer, so that the client does not miss the answer.
_REST_SECONDS = 10.0

log = logging.getLogger(__name__)


class _WebServer:
    """HTTP server of one port. It knows the connections with an open request, and finishes those when it drains."""

    def __init__(self, answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> None:
        self.server = web.Server(self._serve, access_log=None)
        self._answer = answer
        self._busy: set[web.RequestHandler] = set()
        self._is_draining = False
        self._request_ended = asyncio.Event()

    async def drain(self) -> None:
        """Close idle connections, and the others after their requests, whose bodies and WebSockets go on until then.

        The time of a request is limited by its proxy alone.
        """
        self._is_draining = True
        await asyncio.sleep(_BEGIN_SECONDS)
        # Not those with a request: aiohttp drops everything that a connection receives after `close` or `shutdown`.
        idle = [connection for connection in self.server.connections if connection not in self._busy]
        for connection in idle:
            connection.close()
        await asyncio.gather(*(connection.shutdown(timeout=_REST_SECONDS) for connection in idle))
        while self._busy:
            self._request_ended.clear()
            await self._request_ended.wait()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        self._busy.add(request.protocol)
        try:
            answer = await self._answer(request)
        finally:
            self._busy.discard(request.protocol)
            self._request_ended.set()
        if self._is_draining:
            answer.force_close()
        return answer


class Listeners:
    """Listeners of all routes. `proxies` maps the name of a cloud to the ways in which its instances are reached.

    `limits` count every connection. Those of the traffic count an HTTP connection only while it has a request.
    """

    def __init__(
        self,
        host: str,
        proxies: Mapping[str, Proxies],
        limits: CallerLimits | None = None,
        *,
        linger_seconds: float = _LINGER_SECONDS,
    ) -> None:
        self._host = host
        self._proxies = proxies
        self._limits = limits or CallerLimits.of_this_process()
        self._routes: dict[int, Route] = {}
        self._servers: dict[int, asyncio.Server] = {}
        self._web_servers: dict[int, _WebServer] = {}
        self._linger_seconds = linger_seconds
        self._lingering: dict[int, asyncio.TimerHandle] = {}
        self._draining: set[_WebServer] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self.failed: frozenset[int] = frozenset()

    async def sync(self, routes: Mapping[int, Route], conflicts: Collection[int] = ()) -> None:
        """Serve these routes, and those of web Apps that have just gone. Open connections are kept.

        A port whose route has changed is closed first, so that no connection meets both. `conflicts` are ports that two
        claims have: they are closed at once, because new connections may be meant for either. Call it in one task at a
        time.
        """
        served = {port: route for port, route in routes.items() if route.provider in self._proxies}
        for port, route in list(self._routes.items()):
            if served.get(port) == route:
                self._stay(port)
            elif port in served or port in conflicts or not web_app.is_instance(route.instance):
                self._close(port)
            elif port not in self._lingering:
                loop = asyncio.get_running_loop()
                self._lingering[port] = loop.call_later(self._linger_seconds, self._close, port)
        failed = set()
        for port, route in served.items():
            if port not in self._servers:
                try:
                    await self._open(route)
                except OSError as error:
                    failed.add(port)
                    log.warning("bridge port cannot be opened, retried", extra={"port": port, "why": str(error)})
        self.failed = frozenset(failed)

    async def close(self, *, finish_seconds: float = 0.0) -> None:
        """Stop listening, and end all open connections. `finish_seconds`: how long they may go on until then."""
        for port in list(self._servers):
            self._close(port)
        if self._connections and finish_seconds:
            await asyncio.wait(self._connections, timeout=finish_seconds)
        await asyncio.gather(*(each.server.shutdown(timeout=_SHUTDOWN_SECONDS) for each in self._draining))
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _open(self, route: Route) -> None:
        loop, proxy = asyncio.get_running_loop(), self._proxies[route.provider].choose(route)
        listener = LimitedListener(socket.create_server((self._host, route.port), backlog=_BACKLOG), self._limits)
        if isinstance(proxy, HttpProxy):
            found = self._web_servers[route.port] = _WebServer(functools.partial(proxy.serve, route))
            self._servers[route.port] = await loop.create_server(found.server, sock=listener, backlog=_BACKLOG)
        else:
            connected = functools.partial(self._connected, proxy, route)
            self._servers[route.port] = await asyncio.start_server(connected, sock=listener, backlog=_BACKLOG)
        self._routes[route.port] = route

    def _stay(self, port: int) -> None:
        if (timer := self._lingering.pop(port, None)) is not None:
            timer.cancel()

    def _close(self, port: int) -> None:
        """Stop listening on the port. Requests that are open are finished."""
        self._stay(port)
        self._servers.pop(port).close()
        del self._routes[port]
        if (server := self._web_servers.pop(port, None)) is not None:
            self._draining.add(server)
            self._track(self._drain(server))

    async def _drain(self, server: _WebServer) -> None:
        try:
            await server.drain()
        finally:
            self._draining.discard(server)

    def _track(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    def _connected(
        self, proxy: RawProxy, route: Route, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._track(proxy.serve(route, reader, writer))
