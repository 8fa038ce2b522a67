"""The client's connection for exec and attach, over SPDY or WebSocket, with the requested streams."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
from aiohttp import web

from skysail.node.server import websocket_channels
from skysail.node.server.errors import BadRequest, PeerGone
from skysail.node.server.spdy import upgrade as spdy_upgrade
from skysail.node.server.spdy.session import Session, SpdyStream
from skysail.node.server.streams import ERROR, RESIZE, STDERR, STDIN, STDOUT, Connection, requested_protocol
from skysail.node.server.websocket_channels import Channels

# Never v5 on SPDY, even if offered: v5 is not defined for SPDY, which has its own end of a stream.
_SPDY = (websocket_channels.V4, "v3.channel.k8s.io", "v2.channel.k8s.io")
_WITHOUT_RESIZE = "v2.channel.k8s.io"
_PLAIN_STATUS = (websocket_channels.V1, websocket_channels.V1_BASE64)
_WEBSOCKET = (websocket_channels.V5, websocket_channels.V4, websocket_channels.V4_BASE64, *_PLAIN_STATUS)
_NUMBERS = {STDIN: 0, STDOUT: 1, STDERR: 2, ERROR: 3, RESIZE: 4}
_OPENING_SECONDS = 30.0


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Streams that the client requests. With a tty there is no stderr."""

    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool

    @classmethod
    def of(cls, request: web.Request) -> StreamOptions:
        """Return the options of a request. The parameters have other names than at the API server.

        Raises BadRequest if no stream is requested.
        """
        on = {name for name in ("input", "output", "error", "tty") if request.query.get(name) in {"1", "true"}}
        if not on & {"input", "output", "error"}:
            raise BadRequest("you must specify at least 1 of stdin, stdout, stderr")
        tty = "tty" in on
        return cls(stdin="input" in on, stdout="output" in on, stderr="error" in on and not tty, tty=tty)

    @property
    def names(self) -> frozenset[str]:
        requested = {STDIN: self.stdin, STDOUT: self.stdout, STDERR: self.stderr, RESIZE: self.tty, ERROR: True}
        return frozenset(name for name, is_requested in requested.items() if is_requested)


async def open_connection(request: web.Request, options: StreamOptions) -> Connection:
    """Upgrade the request. Raises an HttpError before the upgrade, and PeerGone after it."""
    upgrade = requested_protocol(request)
    if upgrade == websocket_channels.UPGRADE:
        return await _over_websocket(request, options)
    if upgrade == spdy_upgrade.UPGRADE:
        return await _over_spdy(request, options)
    raise BadRequest("Upgrade request required")


class WebSocketConnection(Channels):
    def __init__(self, socket: web.WebSocketResponse, numbers: Mapping[str, int]) -> None:
        super().__init__(socket, numbers)
        self.has_plain_status = socket.ws_protocol in {None, *_PLAIN_STATUS}


async def _over_websocket(request: web.Request, options: StreamOptions) -> WebSocketConnection:
    socket = await websocket_channels.shake_hands(request, _WEBSOCKET)
    connection = WebSocketConnection(socket, {name: _NUMBERS[name] for name in options.names})
    first = min(options.names & {STDOUT, STDERR, ERROR}, key=_NUMBERS.__getitem__)
    await connection.streams[first].announce()
    return connection


class SpdyConnection:
    """A `Connection` over SPDY. The peer opens the streams one by one."""

    def __init__(self, expected: frozenset[str], *, has_plain_status: bool) -> None:
        self._expected = expected
        self.has_plain_status = has_plain_status
        self._streams: dict[str, SpdyStream] = {}
        self._is_complete = asyncio.Event()
        self.session: Session

    @property
    def streams(self) -> Mapping[str, SpdyStream]:
        return self._streams

    def accept(self, stream: SpdyStream) -> None:
        name = stream.headers.get("streamtype", "")
        if name not in self._expected or name in self._streams:
            raise BadRequest(f"a stream of type {name!r} is not expected")
        self._streams[name] = stream
        if len(self._streams) == len(self._expected):
            self._is_complete.set()

    async def complete(self) -> None:
        """Wait until all streams are open, because the program's first byte needs its stream."""
        try:
            await asyncio.wait_for(self._is_complete.wait(), _OPENING_SECONDS)
        except TimeoutError as error:
            self.session.carrier.close()
            raise PeerGone("the client has not opened its streams") from error

    async def gone(self) -> None:
        await self.session.lost()

    async def hang_up(self) -> web.StreamResponse:
        for stream in self._streams.values():
            stream.finish()
            stream.discard()
        await self.session.hang_up()
        return spdy_upgrade.Taken()


async def _over_spdy(request: web.Request, options: StreamOptions) -> SpdyConnection:
    version = spdy_upgrade.version(request, _SPDY)
    expected = options.names - {RESIZE} if version == _WITHOUT_RESIZE else options.names
    connection = SpdyConnection(expected, has_plain_status=version != websocket_channels.V4)
    connection.session = spdy_upgrade.take_over(request, version, connection.accept)
    await connection.complete()
    return connection
