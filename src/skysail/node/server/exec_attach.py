"""exec and attach: a user's streams joined to a provider's session, until one of the two ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any

from aiohttp import web

from skysail.cloud.errors import ProviderError
from skysail.cloud.provider import Session
from skysail.node.server.backend import Backend, PodRef
from skysail.node.server.errors import BadRequest, NotSupported, PeerGone
from skysail.node.server.exec_connection import StreamOptions, open_connection
from skysail.node.server.exit_status import ExitStatus
from skysail.node.server.streams import ERROR, RESIZE, STDIN, Connection, Stream

_MAX_RESIZE_BYTES = 4096
_QUIET_SECONDS = 0.1
_HUSH_SECONDS = 2.0
_BROKEN = ExitStatus(fault="the node failed while it served this command; its log says why")
_STOPPING = ExitStatus(fault="the node is shutting down; the command may go on without you")

log = logging.getLogger(__name__)

Start = Callable[[], Awaitable[Session]]


class ExecAttachHandler:
    """`stopping` is set when the server ends: then every user is told, instead of being cut off."""

    def __init__(self, backend: Backend, stopping: asyncio.Event) -> None:
        self._backend = backend
        self._stopping = stopping

    async def exec(self, request: web.Request, pod_ref: PodRef) -> web.StreamResponse:
        run = self._backend.run(pod_ref)
        if not self._backend.features.exec:
            raise NotSupported("this provider cannot run a command beside a container; look at the logs instead")
        command = tuple(request.query.getall("command", []))
        if not command:
            raise BadRequest("you must specify at least one command for the container")
        options = StreamOptions.of(request)
        return await self._serve(
            request, options, lambda: self._backend.exec(run, command, stdin=options.stdin, tty=options.tty)
        )

    async def attach(self, request: web.Request, pod_ref: PodRef) -> web.StreamResponse:
        """Ends with success whatever the run's exit code: that one is told by the pod's status."""
        run = self._backend.run(pod_ref)
        if not self._backend.features.attach:
            raise NotSupported("this provider cannot attach to a container; follow its logs instead")
        options = StreamOptions.of(request)
        return await self._serve(
            request, options, lambda: self._backend.attach(run, stdin=options.stdin), tells_code=False
        )

    async def _serve(
        self, request: web.Request, options: StreamOptions, start: Start, *, tells_code: bool = True
    ) -> web.StreamResponse:
        connection = await open_connection(request, options)
        exit_status = _BROKEN
        try:
            exit_status = await self._verdict(connection, start)
        except PeerGone:
            log.debug("the user left", extra={"path": request.path})
        finally:
            # Whatever happened: kubectl takes silence on the error stream for success.
            if not tells_code and not exit_status.fault:
                exit_status = ExitStatus()
            response = await _conclude(connection, exit_status, is_pouring=options.stdin and not options.tty)
        return response

    async def _verdict(self, connection: Connection, start: Start) -> ExitStatus:
        try:
            session = await start()
            try:
                return await self._bridge(session, connection)
            finally:
                await session.close()
        except (ProviderError, OSError) as error:
            return ExitStatus(fault=str(error))

    async def _bridge(self, session: Session, connection: Connection) -> ExitStatus:
        async with (
            _background(*_inputs(session, connection)),
            _background(_show(session, connection), connection.gone(), self._stopping.wait()) as (
                showing,
                leaving,
                stopping,
            ),
        ):
            await asyncio.wait({showing, leaving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if showing.done():
                await showing
                return ExitStatus(await session.wait())
            if leaving.done():
                raise PeerGone("the user left")
            return _STOPPING


@contextlib.asynccontextmanager
async def _background(*coroutines: Coroutine[Any, Any, Any]) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Tasks that end with the block, at the latest."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _inputs(session: Session, connection: Connection) -> Iterator[Coroutine[Any, Any, None]]:
    if stdin := connection.streams.get(STDIN):
        yield _type(stdin, session)
    if resize := connection.streams.get(RESIZE):
        yield _follow_size(resize, session)


async def _show(session: Session, connection: Connection) -> None:
    """What the user did not ask for is read all the same: else the program would wait for its reader."""
    async for piece in session.output():
        target = connection.streams.get(piece.stream)
        if target:
            await target.write(piece.data)


async def _type(stdin: Stream, session: Session) -> None:
    try:
        await _feed(stdin, session)
        # The program takes no more, or has been told the end. What the user still sends is dropped.
        while await stdin.read():
            pass
    except PeerGone:
        log.debug("the user left while typing")


async def _feed(stdin: Stream, session: Session) -> None:
    try:
        while data := await stdin.read():
            await session.write(data)
        await session.close_stdin()
    except (ProviderError, ConnectionError) as error:
        log.debug("the program takes no more input", extra={"why": str(error)})


async def _conclude(connection: Connection, exit_status: ExitStatus, *, is_pouring: bool) -> web.StreamResponse:
    try:
        if is_pouring:
            await _drain_stdin(connection.streams[STDIN])
        await connection.streams[ERROR].write(exit_status.encode(plain=connection.has_plain_status))
    except PeerGone:
        log.debug("nobody is left to be told", extra={"code": exit_status.code, "fault": exit_status.fault})
    return await connection.hang_up()


async def _drain_stdin(stdin: Stream) -> None:
    """Let input that pours in come to its end before the last word is said.

    The API server closes on that word. If it has not read all of its client's input by then, the kernel resets the
    connection, and the client loses output that it has not read.
    """
    try:
        async with asyncio.timeout(_HUSH_SECONDS):
            while await asyncio.wait_for(stdin.read(), _QUIET_SECONDS):
                pass
    except (TimeoutError, PeerGone) as reason:
        log.debug("input has not ended", extra={"why": repr(reason)})


async def _follow_size(resize: Stream, session: Session) -> None:
    try:
        async for width, height in sizes(resize):
            await session.resize(width, height)
    except (ProviderError, PeerGone, BadRequest) as error:
        log.debug("sizes are no longer followed", extra={"why": str(error)})


async def sizes(stream: Stream) -> AsyncIterator[tuple[int, int]]:
    """Width and height, from JSON objects in a row that may be cut anywhere. Raises BadRequest for anything else."""
    decoder, text = json.JSONDecoder(), ""
    while data := await stream.read():
        text += data.decode(errors="replace")
        while text := text.lstrip():
            try:
                size, end = decoder.raw_decode(text)
            except ValueError:
                break
            text = text[end:]
            yield _size(size)
        if len(text) > _MAX_RESIZE_BYTES:
            raise BadRequest("the size of the terminal is not JSON")


def _size(size: Any) -> tuple[int, int]:
    match size:
        case {"Width": int(width), "Height": int(height)} if 0 < width < 2**16 and 0 < height < 2**16:
            return width, height
    raise BadRequest("the size of the terminal has no Width and Height")
