"""Server side of exec, attach and port connections: WebSockets whose first frame is `Opened` or `Failed`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import WSMsgType, web

from skysail.cloud.errors import ProviderError
from skysail.cloud.provider import PortConnection, Session
from skysail.cloud.simulated.http import protocol
from skysail.cloud.simulated.http.protocol import (
    Data,
    EndOfInput,
    ErrorMessage,
    Exited,
    Failed,
    Frame,
    Kill,
    Opened,
    OutputChunk,
    Resize,
)

_HEARTBEAT_SECONDS = 30.0


async def serve_session(request: web.Request, enter: Callable[[], Awaitable[Session]]) -> web.WebSocketResponse:
    socket = await _socket(request)
    try:
        session = await enter()
    except ProviderError as error:
        return await _failed(socket, error)
    try:
        await _send(socket, Opened())
        await _join(_to_session(socket, session), _from_session(socket, session))
    finally:
        await session.close()
    return socket


async def serve_connection(
    request: web.Request, dial: Callable[[], Awaitable[PortConnection]]
) -> web.WebSocketResponse:
    socket = await _socket(request)
    try:
        connection = await dial()
    except ProviderError as error:
        return await _failed(socket, error)
    try:
        await _send(socket, Opened())
        await _join(_to_port(socket, connection), _from_port(socket, connection))
    finally:
        await connection.close()
    return socket


async def _to_session(socket: web.WebSocketResponse, session: Session) -> None:
    """Forward frames to the session until the client disconnects."""
    while frame := await _receive(socket):
        match frame:
            case Data(data):
                await session.write(data)
            case EndOfInput():
                await session.close_stdin()
            case Resize(width, height):
                await session.resize(width, height)
            case Kill():
                await session.kill()


async def _from_session(socket: web.WebSocketResponse, session: Session) -> None:
    """Forward the output and the exit code, then close the connection."""
    try:
        async for piece in session.output():
            await _send(socket, OutputChunk(piece))
        await _send(socket, Exited(await session.wait()))
    finally:
        await socket.close()


async def _to_port(socket: web.WebSocketResponse, connection: PortConnection) -> None:
    """Forward data to the port until the client disconnects. A program that reads no more may still send."""
    while frame := await _receive(socket):
        with contextlib.suppress(OSError):
            match frame:
                case Data(data):
                    await connection.write(data)
                case EndOfInput():
                    await connection.write_eof()


async def _from_port(socket: web.WebSocketResponse, connection: PortConnection) -> None:
    """Forward data from the port. Only its proper end is sent: the client takes another end for a broken connection."""
    try:
        while data := await connection.read():
            await _send(socket, Data(data))
        await _send(socket, EndOfInput())
    except (OSError, ProviderError):
        await socket.close()


async def _join(user: Awaitable[None], other: Awaitable[None]) -> None:
    """Forward both ways until the client disconnects. A broken connection on either side counts as that."""
    other_task = asyncio.ensure_future(other)
    try:
        await user
    except ConnectionError:
        return
    finally:
        other_task.cancel()
        (error,) = await asyncio.gather(other_task, return_exceptions=True)
        if isinstance(error, Exception) and not isinstance(error, ConnectionError | ProviderError):
            raise error


async def _socket(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse(heartbeat=_HEARTBEAT_SECONDS, max_msg_size=protocol.MAX_FRAME_BYTES)
    await socket.prepare(request)
    return socket


async def _failed(socket: web.WebSocketResponse, error: ProviderError) -> web.WebSocketResponse:
    await _send(socket, Failed(ErrorMessage.of(error)))
    await socket.close()
    return socket


async def _send(socket: web.WebSocketResponse, frame: Frame) -> None:
    await socket.send_bytes(protocol.encode(frame))


async def _receive(socket: web.WebSocketResponse) -> Frame | None:
    """Return the next frame. Returns None at the end of the connection, and for an invalid message."""
    message = await socket.receive()
    if message.type is not WSMsgType.BINARY:
        return None
    try:
        return protocol.decode(message.data)
    except msgspec.MsgspecError:
        return None
