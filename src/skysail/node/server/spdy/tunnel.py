"""SPDY inside a WebSocket: the same bytes, in binary messages whose boundaries have no meaning."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from aiohttp import WSMsgType, web

from skysail.node.server.errors import ProtocolBroken
from skysail.node.server.spdy.session import Session, SpdyStream

_QUEUED = 2**20

log = logging.getLogger(__name__)


class Tunnel:
    """The carrier of a session on an open WebSocket."""

    def __init__(self, socket: web.WebSocketResponse, accept: Callable[[SpdyStream], None]) -> None:
        self._socket = socket
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._queued = 0
        self._has_room = _set_event()
        self._may_read = _set_event()
        self.session = Session(self, accept)

    async def run(self) -> None:
        """Transfer bytes both ways until the peer disconnects or the session closes."""
        sender = asyncio.create_task(self._send())
        reader = asyncio.create_task(self._read())
        try:
            await asyncio.wait({sender, reader}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            reader.cancel()
            sender.cancel()
            await asyncio.gather(sender, reader, return_exceptions=True)
            self.session.lose()
            self._has_room.set()
            await self._socket.close()

    def write(self, data: bytes) -> None:
        self._queued += len(data)
        self._queue.put_nowait(data)
        if self._queued > _QUEUED:
            self._has_room.clear()

    async def drain(self) -> None:
        await self._has_room.wait()

    def pause(self) -> None:
        self._may_read.clear()

    def resume(self) -> None:
        self._may_read.set()

    def close(self) -> None:
        self._queue.put_nowait(None)

    async def _send(self) -> None:
        while (data := await self._queue.get()) is not None:
            try:
                await self._socket.send_bytes(data)
            except ConnectionError:
                return
            self._queued -= len(data)
            if self._queued <= _QUEUED:
                self._has_room.set()

    async def _read(self) -> None:
        async for message in self._socket:
            if message.type is not WSMsgType.BINARY:
                continue
            try:
                self.session.feed(message.data)
            except ProtocolBroken as error:
                log.warning("tunnelled connection closed, protocol violated", extra={"why": str(error)})
                return
            await self._may_read.wait()


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event
