"""SPDY on the bare connection: answers an HTTP request with 101, and takes its transport over from aiohttp."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from skysail.node.server.errors import Forbidden, PeerGone, ProtocolBroken
from skysail.node.server.spdy.session import Session, SpdyStream
from skysail.node.server.streams import negotiate

UPGRADE = "spdy/3.1"
_VERSIONS = "X-Stream-Protocol-Version"
_QUEUED = 2**20

log = logging.getLogger(__name__)


def version(request: web.Request, ours: tuple[str, ...]) -> str:
    """Return the protocol to use on top of SPDY. Raises Forbidden if there is no common protocol."""
    chosen = negotiate(request, _VERSIONS, ours)
    if chosen is None:
        raise Forbidden(f"unable to upgrade: this node speaks {', '.join(ours)}")
    return chosen


def take_over(request: web.Request, chosen: str, accept: Callable[[SpdyStream], None]) -> Session:
    """Answer 101 and switch to SPDY. When the session has ended, the handler returns `Taken`."""
    transport = request.transport
    if transport is None:
        raise PeerGone("the client disconnected before the upgrade")
    wire = Wire(transport, transport.get_protocol())
    wire.session = Session(wire, accept)
    transport.set_write_buffer_limits(high=_QUEUED)
    # Before the 101, so that no SPDY byte reaches the HTTP parser.
    transport.set_protocol(wire)
    transport.write(
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
        + f"{_VERSIONS}: {chosen}\r\n\r\n".encode()
    )
    return wire.session


class Wire(asyncio.Protocol):
    """The carrier of a session, and the protocol of its transport."""

    session: Session

    def __init__(self, transport: asyncio.Transport, http: asyncio.BaseProtocol) -> None:
        self._transport = transport
        self._http = http
        self._has_room = asyncio.Event()
        self._has_room.set()

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    async def drain(self) -> None:
        await self._has_room.wait()

    def pause(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        try:
            self.session.feed(data)
        except ProtocolBroken as error:
            log.warning("SPDY connection closed, protocol violated", extra={"why": str(error)})
            self._transport.abort()

    def pause_writing(self) -> None:
        self._has_room.clear()

    def resume_writing(self) -> None:
        self._has_room.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.session.lose()
        self._has_room.set()
        # aiohttp must release the connection as well.
        self._http.connection_lost(error)


class Taken(web.Response):
    """Response that makes aiohttp send nothing more on this connection."""

    def __init__(self) -> None:
        super().__init__(status=101)
        self.force_close()

    async def prepare(self, _request: web.BaseRequest) -> AbstractStreamWriter | None:
        return None

    async def write_eof(self, _data: Any = b"") -> None:
        return None
