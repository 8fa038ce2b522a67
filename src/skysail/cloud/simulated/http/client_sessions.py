"""Client side of exec, attach and port connections to a simulated cloud in another process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import msgspec

from skysail.cloud.errors import OutcomeUnknown
from skysail.cloud.output_buffer import OutputBuffer
from skysail.cloud.provider import Output
from skysail.cloud.simulated.http import protocol
from skysail.cloud.simulated.http.protocol import (
    Data,
    EndOfInput,
    Exited,
    Failed,
    Frame,
    Kill,
    Opened,
    OutputChunk,
    Resize,
)

_LOST = "The connection to the simulated cloud was lost."


async def wait_opened(socket: aiohttp.ClientWebSocketResponse) -> None:
    """Wait until the server confirms the session. Raises errors of `cloud.errors`."""
    frame = await _receive(socket)
    if isinstance(frame, Opened):
        return
    await socket.close()
    raise frame.problem.error() if isinstance(frame, Failed) else OutcomeUnknown(_LOST)


class RemoteSession:
    """Implementation of `cloud.provider.Session`. Frames are read at once, so that the exit code arrives even if the
    output is not read.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._output = OutputBuffer()
        self._code: int | None = None
        self._listening = asyncio.create_task(self._listen())

    async def write(self, data: bytes) -> None:
        await _send(self._socket, Data(data))

    async def close_stdin(self) -> None:
        await _send(self._socket, EndOfInput())

    def output(self) -> AsyncIterator[Output]:
        return self._output.replay()

    async def resize(self, width: int, height: int) -> None:
        await _send(self._socket, Resize(width, height))

    async def wait(self) -> int:
        await asyncio.wait({self._listening})
        if self._code is None:
            raise OutcomeUnknown(_LOST)
        return self._code

    async def kill(self) -> None:
        await _send(self._socket, Kill())

    async def close(self) -> None:
        self._listening.cancel()
        await asyncio.wait({self._listening})
        await self._socket.close()

    async def _listen(self) -> None:
        try:
            while frame := await _receive(self._socket):
                match frame:
                    case OutputChunk(piece):
                        await self._output.put(piece)
                    case Exited(code):
                        self._code = code
        finally:
            self._output.end()


class RemoteConnection:
    """Implementation of `cloud.provider.PortConnection`."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._has_ended = False

    async def read(self) -> bytes:
        if self._has_ended:
            return b""
        match await _receive(self._socket):
            case Data(data):
                return data
            case EndOfInput():
                self._has_ended = True
                return b""
        raise OutcomeUnknown(_LOST)

    async def write(self, data: bytes) -> None:
        await _send(self._socket, Data(data))

    async def write_eof(self) -> None:
        await _send(self._socket, EndOfInput())

    async def close(self) -> None:
        await self._socket.close()


async def _receive(socket: aiohttp.ClientWebSocketResponse) -> Frame | None:
    """Return the next frame. Returns None at the end of the connection, for any cause."""
    message = await socket.receive()
    if message.type is not aiohttp.WSMsgType.BINARY:
        return None
    try:
        return protocol.decode(message.data)
    except msgspec.MsgspecError:
        return None


async def _send(socket: aiohttp.ClientWebSocketResponse, frame: Frame) -> None:
    """Send a frame. Drops it if the connection is closed: the receiving task reports the end."""
    try:
        await socket.send_bytes(protocol.encode(frame))
    except ConnectionError:
        return
