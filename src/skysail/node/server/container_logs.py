"""The route containerLogs: the log of a container as text, followed on request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import datetime

from aiohttp import web

from skysail.node.log_store import LogQuery
from skysail.node.server.backend import Backend, PodRef
from skysail.node.server.errors import BadRequest

_POLL_SECONDS = 5.0


class ContainerLogs:
    """Serves logs. `clock` returns seconds since 1970."""

    def __init__(self, backend: Backend, stopping: asyncio.Event, clock: Callable[[], float]) -> None:
        self._backend = backend
        self._stopping = stopping
        self._clock = clock

    async def serve(self, request: web.Request, pod_ref: PodRef) -> web.StreamResponse:
        log_query = parse_query(request, self._clock())
        previous = _flag(request, "previous")
        pieces = self._backend.logs(pod_ref, previous=previous, log_query=log_query)
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        response.enable_chunked_encoding()
        # The caller may disconnect at any time, even during the last write.
        with contextlib.suppress(ConnectionError):
            await response.prepare(request)
            await self._send(request, response, pieces)
            await response.write_eof()
        return response

    async def _send(self, request: web.Request, response: web.StreamResponse, pieces: AsyncIterator[bytes]) -> None:
        """Send the pieces. Polls the connection, because hours may pass between two pieces and the caller may leave."""
        stopping = asyncio.create_task(self._stopping.wait())
        coming = asyncio.ensure_future(anext(pieces, None))
        try:
            while not stopping.done() and _is_connected(request):
                await asyncio.wait({coming, stopping}, timeout=_POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    continue
                piece = await coming
                if piece is None:
                    return
                await response.write(piece)
                coming = asyncio.ensure_future(anext(pieces, None))
        finally:
            stopping.cancel()
            coming.cancel()
            await asyncio.gather(stopping, coming, return_exceptions=True)


def parse_query(request: web.Request, now: float) -> LogQuery:
    """Return the log query of a request. Raises BadRequest for values that the API server rejects as well."""
    seconds, time = _number(request, "sinceSeconds"), request.query.get("sinceTime")
    if seconds is not None and time:
        raise BadRequest("at most one of sinceTime or sinceSeconds may be specified")
    since = None if seconds is None else now - seconds
    return LogQuery(
        follow=_flag(request, "follow"),
        timestamps=_flag(request, "timestamps"),
        tail=_number(request, "tailLines"),
        since=_time(time) if time else since,
        limit=_number(request, "limitBytes"),
    )


def _flag(request: web.Request, name: str) -> bool:
    return request.query.get(name, "").lower() in {"1", "t", "true"}


def _number(request: web.Request, name: str) -> int | None:
    text = request.query.get(name)
    if text is None:
        return None
    if not text.isdecimal():
        raise BadRequest(f"{name} must be a non-negative number, not {text!r}")
    return int(text)


def _time(text: str) -> float:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadRequest(f"sinceTime must be a time such as 2026-01-31T12:00:00Z, not {text!r}") from error
    if time.tzinfo is None:
        raise BadRequest(f"sinceTime {text!r} has no time zone")
    return time.timestamp()


def _is_connected(request: web.Request) -> bool:
    return request.transport is not None and not request.transport.is_closing()
