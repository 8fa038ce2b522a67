"""Streams as channels of a WebSocket: the first byte of each message is the number of the channel.

v5 adds a message with which the client closes a channel; before v5, standard input has no end. In the base64 variant,
messages are text: a digit, then base64.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Mapping

from aiohttp import WSMessage, WSMsgType, web

from skysail.node.server.backpressure import Backpressure
from skysail.node.server.errors import Forbidden, PeerGone
from skysail.node.server.spill_buffer import PIECE, SpillBuffer
from skysail.node.server.streams import negotiate

V5, V4, V4_BASE64 = "v5.channel.k8s.io", "v4.channel.k8s.io", "v4.base64.channel.k8s.io"
# Before v4 the error channel carries plain text. A client that offers no protocol speaks the first of them.
V1, V1_BASE64 = "channel.k8s.io", "base64.channel.k8s.io"
UPGRADE = "websocket"
_CLOSE = 255
_MAX_MESSAGE_BYTES = 64 * 2**20


async def shake_hands(request: web.Request, ours: tuple[str, ...]) -> web.WebSocketResponse:
    """Open the WebSocket. Raises Forbidden if there is no common protocol."""
    is_bare = V1 in ours and "Sec-WebSocket-Protocol" not in request.headers
    if not is_bare and negotiate(request, "Sec-WebSocket-Protocol", ours) is None:
        raise Forbidden(f"unable to upgrade: this node speaks {', '.join(ours)}")
    socket = web.WebSocketResponse(protocols=ours, max_msg_size=_MAX_MESSAGE_BYTES, compress=False)
    await socket.prepare(request)
    return socket


class Channel:
    """A `Stream` with a number."""

    def __init__(self, channels: Channels, number: int, spill_buffer: SpillBuffer) -> None:
        self._channels = channels
        self._number = number
        self.inbox = spill_buffer

    async def read(self) -> bytes:
        return await self.inbox.read()

    async def write(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE):
            await self._channels.send(self._number, data[start : start + PIECE])

    async def announce(self, data: bytes = b"") -> None:
        """Send a message even if it is empty: the kubelet sends one first, and clients wait for it."""
        await self._channels.send(self._number, data)

    def finish(self) -> None:
        """Do nothing: a channel has no end of its own, only the socket has."""

    def discard(self) -> None:
        self.inbox.lose()


class Channels:
    """All channels of one socket, by name. Reads from the start, so that pings are always answered."""

    def __init__(self, socket: web.WebSocketResponse, numbers: Mapping[str, int]) -> None:
        self._socket = socket
        self._is_base64 = socket.ws_protocol in {V4_BASE64, V1_BASE64}
        self._can_close = socket.ws_protocol == V5
        self._may_read = asyncio.Event()
        self._may_read.set()
        backpressure = Backpressure(self._may_read.clear, self._may_read.set)
        self.streams = {
            name: Channel(self, number, SpillBuffer(backpressure.count)) for name, number in numbers.items()
        }
        self._by_number = {number: self.streams[name] for name, number in numbers.items()}
        self._reader = asyncio.create_task(self._read())

    async def gone(self) -> None:
        await asyncio.wait({self._reader})

    async def send(self, number: int, data: bytes) -> None:
        try:
            if self._is_base64:
                await self._socket.send_str(f"{number}{base64.b64encode(data).decode()}")
            else:
                await self._socket.send_bytes(bytes((number,)) + data)
        except ConnectionError as error:
            raise PeerGone("the WebSocket is closed") from error

    async def hang_up(self) -> web.StreamResponse:
        self._reader.cancel()
        await asyncio.wait({self._reader})
        for stream in self.streams.values():
            stream.discard()
        # Sends code 1000 and waits for the peer's close; without it, kubectl reports an abnormal closure.
        await self._socket.close()
        return self._socket

    async def _read(self) -> None:
        try:
            async for message in self._socket:
                self._take(message)
                await self._may_read.wait()
        finally:
            for channel in self.streams.values():
                channel.inbox.lose()

    def _take(self, message: WSMessage) -> None:
        number, data = self._parse(message)
        if number == _CLOSE and self._can_close and data:
            channel = self._by_number.get(data[0])
            if channel:
                channel.inbox.end()
        elif number in self._by_number:
            self._by_number[number].inbox.put(data)

    def _parse(self, message: WSMessage) -> tuple[int, bytes]:
        """Return channel and content. Returns channel -1 for an invalid message, which is skipped as in the kubelet."""
        if message.type is WSMsgType.BINARY and message.data and not self._is_base64:
            return message.data[0], message.data[1:]
        if message.type is WSMsgType.TEXT and self._is_base64 and message.data[:1].isdigit():
            try:
                return int(message.data[0]), base64.b64decode(message.data[1:], validate=True)
            except (ValueError, binascii.Error):
                return -1, b""
        return -1, b""
