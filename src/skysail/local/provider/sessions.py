"""Sessions: exec in a container, attach to a container, and connect to a port of a pod."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

from skysail.cloud.provider import Output
from skysail.local.bubblewrap.container import ExecProcess
from skysail.local.provider.container_run import ContainerRun

_END_OF_INPUT = b"\x04"
_CHUNK = 64 * 1024
_ANSWER_SECONDS = 0.2


class Exec:
    """Exec session. Closing it does not kill the command: without a terminal it continues when the client has left."""

    def __init__(self, running: ExecProcess) -> None:
        self._running = running
        self._end = asyncio.create_task(running.wait())

    async def write(self, data: bytes) -> None:
        if self._running.streams.sink is not None:
            await self._running.streams.sink.write(data)

    async def close_stdin(self) -> None:
        if self._running.streams.sink is None:
            return
        if self._running.streams.is_terminal:
            await self.write(_END_OF_INPUT)
        else:
            await self._running.streams.sink.finish()

    def output(self) -> AsyncIterator[Output]:
        return self._running.output.replay()

    async def resize(self, width: int, height: int) -> None:
        self._running.streams.resize(width, height)

    async def wait(self) -> int:
        return await asyncio.shield(self._end)

    async def kill(self) -> None:
        self._running.kill()

    async def close(self) -> None:
        await self._running.detach()


class Attached:
    """Attach session. The run continues without it.

    When the client's input ends, the run's stdin is closed only with stdinOnce. Otherwise it stays open for the next
    session, and this session ends, as in other container runtimes: nothing else would ever end it.
    """

    def __init__(self, container_run: ContainerRun, *, stdin: bool) -> None:
        self._container_run = container_run
        self._std_streams = container_run.running.streams
        self._sink = self._std_streams.sink if stdin else None
        self._output = container_run.running.output.tail()
        self._left = asyncio.Event()

    async def write(self, data: bytes) -> None:
        if self._sink is not None:
            await self._sink.write(data)

    async def close_stdin(self) -> None:
        """Close the run's stdin with stdinOnce, unless it is a terminal. Otherwise end the session."""
        if self._sink is None:
            return
        if self._container_run.container.stdin_once and not self._std_streams.is_terminal:
            await self._sink.finish()
        else:
            self._left.set()

    async def output(self) -> AsyncIterator[Output]:
        """Yield the output until the session ends. The program has a moment to answer the last input."""
        leaving = asyncio.create_task(self._left.wait())
        try:
            while (piece := await self._next_piece(leaving)) is not None:
                yield piece
        finally:
            leaving.cancel()

    async def _next_piece(self, leaving: asyncio.Task[bool]) -> Output | None:
        following = asyncio.ensure_future(anext(self._output, None))
        await asyncio.wait({following, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not following.done():
            await asyncio.wait({following}, timeout=_ANSWER_SECONDS)
        if following.done():
            return following.result()
        following.cancel()
        return None

    async def resize(self, width: int, height: int) -> None:
        self._std_streams.resize(width, height)

    async def wait(self) -> int:
        return 0 if self._left.is_set() else (await self._container_run.ended()).code

    async def kill(self) -> None:
        """Do nothing: a session must not end the run."""

    async def close(self) -> None:
        await self.close_stdin()


class SocketConnection:
    """Connection to a port, over a connected socket that does not block.

    The socket is read directly: when a connection is reset, a StreamReader drops the bytes that arrived before.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._calls = 0
        self._is_closing = False

    async def read(self) -> bytes:
        with self._in_use():
            return await asyncio.get_running_loop().sock_recv(self._socket, _CHUNK)

    async def write(self, data: bytes) -> None:
        with self._in_use():
            await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def write_eof(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    async def close(self) -> None:
        """Close the socket. A call in another task ends first, because the event loop still watches the socket."""
        if self._is_closing:
            return
        self._is_closing = True
        if self._calls:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        else:
            self._socket.close()

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            if self._is_closing and not self._calls:
                self._socket.close()


async def connect_socket(host: str, port: int) -> socket.socket:
    """Return a connected socket that does not block. Raises OSError."""
    connection = socket.socket()
    connection.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(connection, (host, port))
    except BaseException:
        connection.close()
        raise
    return connection
