"""The hull's end of its control socket: reads a request, has it performed, sends the answer and perhaps a socket."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from skysail.base import unix_sockets
from skysail.local.cluster.control_client import MAX_MESSAGE_BYTES, Answer, Request
from skysail.local.errors import LocalError

log = logging.getLogger(__name__)

Performer = Callable[[Request], Awaitable[Answer | socket.socket]]


class ControlServer:
    """Listens from its making on; serves while `serve` runs. Readable and writable for the home's owner only."""

    def __init__(self, path: Path, perform: Performer) -> None:
        self._perform = perform
        self._listener = unix_sockets.listen(path, socket.SOCK_SEQPACKET)

    async def serve(self) -> None:
        """Serve until cancelled; then nobody listens any more."""
        loop = asyncio.get_running_loop()
        with self._listener:
            async with asyncio.TaskGroup() as lines:
                while True:
                    connection, _ = await loop.sock_accept(self._listener)
                    lines.create_task(self._answer(connection))

    async def _answer(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with connection:
            try:
                body = await loop.sock_recv(connection, MAX_MESSAGE_BYTES)
                answer, handed = await self._ask(body)
                with handed or socket.socket() as given:
                    socket.send_fds(connection, [msgspec.json.encode(answer)], [given.fileno()] if handed else [])
            except OSError:
                return  # who asked has gone: there is nobody to tell

    async def _ask(self, body: bytes) -> tuple[Answer, socket.socket | None]:
        try:
            result = await self._perform(msgspec.json.decode(body, type=Request))
        except (LocalError, OSError, ValueError) as error:  # a message that cannot be read is a ValueError too
            return Answer(error=str(error) or type(error).__name__), None
        except Exception as error:  # one bad request must not end the hull with all that runs in it
            log.exception("a request failed in a way that nobody foresaw")
            return Answer(error=f"This is a defect of Skysail, the hull's log tells more: {error!r}"), None
        if isinstance(result, socket.socket):
            return Answer(), result
        return result, None
