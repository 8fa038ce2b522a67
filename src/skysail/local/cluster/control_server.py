"""Server of the control socket: reads a request, calls the handler, sends the answer and perhaps a socket."""

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

Handler = Callable[[Request], Awaitable[Answer | socket.socket]]


class ControlServer:
    """Control socket of the local cluster, for the home's owner only.

    It listens from its construction, and answers while `serve` runs.
    """

    def __init__(self, path: Path, handle: Handler) -> None:
        self._handle = handle
        self._listener = unix_sockets.listen(path, socket.SOCK_SEQPACKET)

    async def serve(self) -> None:
        """Serve until cancelled, then close the socket."""
        loop = asyncio.get_running_loop()
        with self._listener:
            async with asyncio.TaskGroup() as connections:
                while True:
                    connection, _ = await loop.sock_accept(self._listener)
                    connections.create_task(self._answer(connection))

    async def _answer(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with connection:
            try:
                body = await loop.sock_recv(connection, MAX_MESSAGE_BYTES)
                answer, passed_socket = await self._ask(body)
                with passed_socket or socket.socket() as passed:
                    socket.send_fds(
                        connection, [msgspec.json.encode(answer)], [passed.fileno()] if passed_socket else []
                    )
            except OSError:
                return  # the client has closed its connection

    async def _ask(self, body: bytes) -> tuple[Answer, socket.socket | None]:
        try:
            result = await self._handle(msgspec.json.decode(body, type=Request))
        except (LocalError, OSError, ValueError) as error:  # an unreadable message is a ValueError too
            return Answer(error=str(error) or type(error).__name__), None
        except Exception as error:  # one bad request must not end the local cluster
            log.exception("control request failed unexpectedly")
            return Answer(
                error=f"Skysail failed unexpectedly, the log of the local cluster has details: {error!r}"
            ), None
        if isinstance(result, socket.socket):
            return Answer(), result
        return result, None
