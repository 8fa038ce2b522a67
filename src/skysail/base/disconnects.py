"""Clients that leave before they have their answer: a line in the log, and no traceback."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def tolerate_disconnects(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Log once that the client left, in place of aiohttp's traceback. The outermost middleware of every server.

    Other connections of the handler, such as to the API server, may break as well: their errors are passed on.
    """
    try:
        return await handler(request)
    except ConnectionError as error:
        if is_connected(request):
            raise
        log.info("client left before the answer", extra={"path": request.path, "why": str(error)})
        return web.Response()


def is_connected(request: web.Request) -> bool:
    return request.transport is not None and not request.transport.is_closing()
