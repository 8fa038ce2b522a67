"""Server side of one SPDY session: the streams that the peer opens, until it disconnects.

There is no flow control: the Go peer neither sends window updates nor obeys ours, so no code may wait for one. Unread
bytes of a stream are kept in its inbox.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from skysail.node.server.backpressure import Backpressure
from skysail.node.server.errors import BadRequest, PeerGone
from skysail.node.server.spdy import frames
from skysail.node.server.spdy.frames import Control, Data, Kind, Reset
from skysail.node.server.spdy.headers import Compressor, Decompressor
from skysail.node.server.spill_buffer import PIECE, SpillBuffer

_PEER_CLOSES_SECONDS = 5.0

log = logging.getLogger(__name__)


class Carrier(Protocol):
    """Sends bytes to the peer. Its reader calls `Session.feed` for each piece, and `Session.lose` at the end."""

    def write(self, data: bytes) -> None:
        """Queue bytes in order, without waiting."""
        ...

    async def drain(self) -> None:
        """Wait while too many bytes are queued."""
        ...

    def pause(self) -> None:
        """Stop reading from the peer."""
        ...

    def resume(self) -> None: ...

    def close(self) -> None:
        """Send all queued bytes, then close. Idempotent."""
        ...


class SpdyStream:
    """A `Stream` that the peer opened, with the headers that describe its purpose."""

    def __init__(self, session: Session, number: int, headers: dict[str, str]) -> None:
        self._session = session
        self.number = number
        self.headers = headers
        self.inbox = SpillBuffer(session.flow.count)
        self.is_finished = False
        self.peer_has_finished = False

    async def read(self) -> bytes:
        return await self.inbox.read()

    async def write(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE):
            await self._session.send(self, data[start : start + PIECE])

    def finish(self) -> None:
        if not self.is_finished:
            self.is_finished = True
            self._session.finish(self)

    def discard(self) -> None:
        self.inbox.lose()


class Session:
    """One session. `accept` is called for each stream that the peer opens; it rejects a stream with BadRequest."""

    def __init__(self, carrier: Carrier, accept: Callable[[SpdyStream], None]) -> None:
        self.carrier = carrier
        self.flow = Backpressure(carrier.pause, carrier.resume)
        self._accept = accept
        self._streams: dict[int, SpdyStream] = {}
        self._decoder = frames.Decoder()
        self._compressor = Compressor()
        self._decompressor = Decompressor()
        self._last_number = 0
        self._lost = asyncio.Event()

    def feed(self, data: bytes) -> None:
        """Process bytes of the peer. Raises ProtocolBroken; the connection must be closed then."""
        for frame in self._decoder.feed(data):
            if isinstance(frame, Data):
                self._take_data(frame)
            else:
                self._take_control(frame)

    def lose(self) -> None:
        """Mark the peer as disconnected. Idempotent."""
        self._lost.set()
        self._drop_streams()

    async def lost(self) -> None:
        await self._lost.wait()

    async def hang_up(self) -> None:
        """End all streams, drop further input, wait for the peer to close first, then close."""
        for stream in list(self._streams.values()):
            stream.finish()
        self._drop_streams()
        try:
            await asyncio.wait_for(self._lost.wait(), _PEER_CLOSES_SECONDS)
        except TimeoutError:
            self._control(Kind.GOAWAY, frames.words(self._last_number, 0))
        self.carrier.close()

    async def send(self, stream: SpdyStream, data: bytes) -> None:
        if stream.is_finished or self._lost.is_set():
            raise PeerGone("the stream is closed")
        self.carrier.write(Data(stream.number, data).encode())
        await self.carrier.drain()

    def finish(self, stream: SpdyStream) -> None:
        if self._lost.is_set():
            return
        self.carrier.write(Data(stream.number, b"", frames.FIN).encode())
        self._forget_if_finished(stream)

    def _take_data(self, frame: Data) -> None:
        stream = self._streams.get(frame.stream)
        if stream is None:
            return
        stream.inbox.put(frame.body)
        if frame.is_last:
            self._peer_finished(stream)

    def _take_control(self, frame: Control) -> None:
        match frame.kind:
            case Kind.SYN_STREAM:
                self._open(frame)
            case Kind.RST_STREAM:
                stream = self._streams.pop(frame.stream, None)
                if stream:
                    stream.is_finished = True
                    stream.inbox.lose()
            case Kind.PING if frame.word() % 2:  # odd numbers are the client's and need an echo
                self._control(Kind.PING, frame.body)
            case Kind.HEADERS:
                self._decompressor.headers(frame.body[4:])
            case Kind.GOAWAY:
                self.lose()

    def _open(self, frame: Control) -> None:
        number = frame.stream
        headers = self._decompressor.headers(frame.body[10:])
        if number % 2 == 0 or number <= self._last_number:
            self._reset(number, Reset.PROTOCOL_ERROR)
            return
        self._last_number = number
        stream = SpdyStream(self, number, headers)
        self._streams[number] = stream
        # Send the reply before the stream is used: the peer drops data that arrives before it.
        self._control(Kind.SYN_REPLY, frames.words(number) + self._compressor.block({}))
        if frame.is_last:
            self._peer_finished(stream)
        try:
            self._accept(stream)
        except BadRequest as error:
            log.info("stream rejected", extra={"headers": headers, "why": str(error)})
            del self._streams[number]
            self._reset(number, Reset.CANCEL)

    def _peer_finished(self, stream: SpdyStream) -> None:
        stream.peer_has_finished = True
        stream.inbox.end()
        self._forget_if_finished(stream)

    def _forget_if_finished(self, stream: SpdyStream) -> None:
        if stream.is_finished and stream.peer_has_finished:
            self._streams.pop(stream.number, None)

    def _drop_streams(self) -> None:
        for stream in self._streams.values():
            stream.inbox.lose()
        self._streams.clear()

    def _reset(self, number: int, why: Reset) -> None:
        self._control(Kind.RST_STREAM, frames.words(number, why))

    def _control(self, kind: Kind, body: bytes) -> None:
        if not self._lost.is_set():
            self.carrier.write(Control(kind, body).encode())
