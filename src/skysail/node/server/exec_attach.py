"""The routes exec and attach: connect a user's streams to a provider's session, until either of them ends."""

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
_MAX_DRAIN_SECONDS = 2.0
_BROKEN = ExitStatus(fault="the node failed while it served this command; see the node's log")
_STOPPING = ExitStatus(fault="the node is shutting down; the command may continue without you")

log = logging.getLogger(__name__)

Start = Callable[[], Awaitable[Session]]


class ExecAttachHandler:
    """Serves exec and attach. When `stopping` is set, each user gets a final status before the connection closes."""

    def __init__(self, backend: Backend, stopping: asyncio.Event) -> None:
        self._backend = backend
        self._stopping = stopping

    async def exec(self, request: web.Request, pod_ref: PodRef) -> web.StreamResponse:
        run = self._backend.run(pod_ref)
        if not self._backend.features.exec:
            raise NotSupported("this provider cannot run commands in a container; read its logs instead")
        command = tuple(request.query.getall("command", []))
        if not command:
            raise BadRequest("you must specify at least one command for the container")
        options = StreamOptions.of(request)
        return await self._serve(
            request, options, lambda: self._backend.exec(run, command, stdin=options.stdin, tty=options.tty)
        )

    async def attach(self, request: web.Request, pod_ref: PodRef) -> web.StreamResponse:
        """Attach to a run. Ends with success for any exit code of the run, because the pod's status has the code."""
        run = self._backend.run(pod_ref)
        if not self._backend.features.attach:
            raise NotSupported("this provider cannot attach to a container; follow its logs instead")
        options = StreamOptions.of(request)
        return await self._serve(
            request, options, lambda: self._backend.attach(run, stdin=options.stdin), with_exit_code=False
        )

    async def _serve(
        self, request: web.Request, options: StreamOptions, start: Start, *, with_exit_code: bool = True
    ) -> web.StreamResponse:
        connection = await open_connection(request, options)
        exit_status = _BROKEN
        try:
            exit_status = await self._run(connection, start)
        except PeerGone:
            log.debug("exec or attach: client disconnected", extra={"path": request.path})
        finally:
            # In any case, because kubectl takes an empty error stream for success.
            if not with_exit_code and not exit_status.fault:
                exit_status = ExitStatus()
            response = await _finish(connection, exit_status, drains_stdin=options.stdin and not options.tty)
        return response

    async def _run(self, connection: Connection, start: Start) -> ExitStatus:
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
            _background(_copy_output(session, connection), connection.gone(), self._stopping.wait()) as (
                output,
                disconnect,
                stopping,
            ),
        ):
            await asyncio.wait({output, disconnect, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if output.done():
                await output
                return ExitStatus(await session.wait())
            if disconnect.done():
                raise PeerGone("the client has disconnected")
            return _STOPPING


@contextlib.asynccontextmanager
async def _background(*coroutines: Coroutine[Any, Any, Any]) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Run tasks that are cancelled at the end of the block."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _inputs(session: Session, connection: Connection) -> Iterator[Coroutine[Any, Any, None]]:
    if stdin := connection.streams.get(STDIN):
        yield _copy_input(stdin, session)
    if resize := connection.streams.get(RESIZE):
        yield _follow_size(resize, session)


async def _copy_output(session: Session, connection: Connection) -> None:
    """Copy the output to the user. Unrequested streams are read as well: otherwise the program would block."""
    async for piece in session.output():
        target = connection.streams.get(piece.stream)
        if target:
            await target.write(piece.data)


async def _copy_input(stdin: Stream, session: Session) -> None:
    try:
        await _copy_until_closed(stdin, session)
        # The program's input is closed: drop further input of the user.
        while await stdin.read():
            pass
    except PeerGone:
        log.debug("client disconnected while sending input")


async def _copy_until_closed(stdin: Stream, session: Session) -> None:
    try:
        while data := await stdin.read():
            await session.write(data)
        await session.close_stdin()
    except (ProviderError, ConnectionError) as error:
        log.debug("program closed its input", extra={"why": str(error)})


async def _finish(connection: Connection, exit_status: ExitStatus, *, drains_stdin: bool) -> web.StreamResponse:
    try:
        if drains_stdin:
            await _drain_stdin(connection.streams[STDIN])
        await connection.streams[ERROR].write(exit_status.encode(plain=connection.has_plain_status))
    except PeerGone:
        extra = {"code": exit_status.code, "fault": exit_status.fault}
        log.debug("exit status not sent, client disconnected", extra=extra)
    return await connection.hang_up()


async def _drain_stdin(stdin: Stream) -> None:
    """Read the remaining input before the exit status is sent.

    The API server closes the connection when it receives the status. If it has not read all of its client's input by
    then, the kernel resets the connection, and the client loses output that it has not read.
    """
    try:
        async with asyncio.timeout(_MAX_DRAIN_SECONDS):
            while await asyncio.wait_for(stdin.read(), _QUIET_SECONDS):
                pass
    except (TimeoutError, PeerGone) as reason:
        log.debug("input did not end in time", extra={"why": repr(reason)})


async def _follow_size(resize: Stream, session: Session) -> None:
    try:
        async for width, height in sizes(resize):
            await session.resize(width, height)
    except (ProviderError, PeerGone, BadRequest) as error:
        log.debug("terminal size no longer followed", extra={"why": str(error)})


async def sizes(stream: Stream) -> AsyncIterator[tuple[int, int]]:
    """Yield width and height from a sequence of JSON objects, split at any byte. Raises BadRequest for other data."""
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
