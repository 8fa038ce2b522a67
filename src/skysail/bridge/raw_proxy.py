"""Forward connections as they are, through an account that connects to ports of its instances.

Everything over TCP works: HTTP, WebSockets, gRPC, databases. Nothing is parsed, so nothing can be smuggled.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import Callable

from skysail.bridge.routes import Route
from skysail.bridge.traffic import Outcome, Traffic
from skysail.cloud.account import CloudAccount
from skysail.cloud.errors import OutcomeUnknown, ProviderError
from skysail.cloud.provider import PortConnection

_DIAL_SECONDS = 20.0
# Nothing was sent before a connection exists, so another attempt is always safe.
_DIAL_RETRY_DELAYS = (0.1, 0.5, 2.0)
_CHUNK_BYTES = 65536
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: reset, so that the client does not take it for the end of the data

log = logging.getLogger(__name__)


class RawProxy:
    """Forwards connections of all routes to one account."""

    def __init__(self, account: CloudAccount, traffic: Traffic, *, idle_seconds: float) -> None:
        self._account = account
        self._traffic = traffic
        self._idle_seconds = idle_seconds

    async def serve(self, route: Route, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection from its start to its end. Never raises errors of the connection."""
        if not self._traffic.admit(route):
            _reset(writer)
            return
        outcome: Outcome = "aborted"
        try:
            outcome = await self._forward(route, reader, writer)
        except (ProviderError, OSError, TimeoutError) as error:
            log.info("connection through the bridge broke", extra={**_fields(route), "why": str(error)})
        finally:
            self._traffic.count(route, outcome)
            self._traffic.leave(route)
            if outcome == "ok":
                await _close(writer)
            else:
                _reset(writer)

    async def _forward(self, route: Route, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Outcome:
        begun = asyncio.get_running_loop().time()
        try:
            connection = await self._dial(route)
        except (ProviderError, OSError, TimeoutError) as error:
            log.info("bridge cannot connect to the instance", extra={**_fields(route), "why": str(error)})
            return "unreachable"
        self._traffic.observe(route, asyncio.get_running_loop().time() - begun)
        try:
            await self._relay(route, connection, reader, writer)
        finally:
            with contextlib.suppress(ProviderError, OSError):
                await connection.close()
        return "ok"

    async def _dial(self, route: Route) -> PortConnection:
        async with asyncio.timeout(_DIAL_SECONDS):
            for delay in _DIAL_RETRY_DELAYS:
                try:
                    return await self._account.dial(route.instance, route.target_port, rank=route.rank)
                except (OutcomeUnknown, OSError) as error:
                    log.debug("dial failed, retried", extra={**_fields(route), "why": str(error)})
                    await asyncio.sleep(delay)
            return await self._account.dial(route.instance, route.target_port, rank=route.rank)

    async def _relay(
        self, route: Route, connection: PortConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Copy both ways until the server has closed its side. The client may close its side before.

        Raises TimeoutError if no byte passes for too long.
        """
        async with asyncio.timeout(self._idle_seconds) as idle:
            alive = self._keep_alive(idle)
            up = asyncio.create_task(self._send(route, connection, reader, alive))
            down = asyncio.create_task(self._receive(route, connection, writer, alive))
            try:
                await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
                if up.done():
                    await up
                await down
            finally:
                up.cancel()
                down.cancel()
                await asyncio.gather(up, down, return_exceptions=True)

    def _keep_alive(self, idle: asyncio.Timeout) -> Callable[[], None]:
        clock = asyncio.get_running_loop().time
        return lambda: idle.reschedule(clock() + self._idle_seconds)

    async def _send(
        self, route: Route, connection: PortConnection, reader: asyncio.StreamReader, alive: Callable[[], None]
    ) -> None:
        """Raises ConnectionError if the client disconnects. A server that reads no more may still answer."""
        while data := await reader.read(_CHUNK_BYTES):
            alive()
            try:
                await connection.write(data)
            except (ProviderError, OSError) as error:
                log.debug("instance stopped reading", extra={**_fields(route), "why": str(error)})
                return
            self._traffic.add_bytes(route, "in", len(data))
        with contextlib.suppress(ProviderError, OSError):
            await connection.write_eof()

    async def _receive(
        self, route: Route, connection: PortConnection, writer: asyncio.StreamWriter, alive: Callable[[], None]
    ) -> None:
        while data := await connection.read():
            alive()
            writer.write(data)
            await writer.drain()
            self._traffic.add_bytes(route, "out", len(data))


async def _close(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        writer.close()
        await writer.wait_closed()


def _reset(writer: asyncio.StreamWriter) -> None:
    connection: socket.socket | None = writer.get_extra_info("socket")
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


def _fields(route: Route) -> dict[str, object]:
    return {"claim": route.claim, "port": route.port, "target_port": route.target_port}
