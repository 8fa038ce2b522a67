"""The user's end of exec and attach, over SPDY or WebSocket: the streams that they asked for, opened."""

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

# Never v5 on SPDY, though it is offered: there it is not defined, and a stream's end is told by SPDY itself.
_SPDY = (websocket_channels.V4, "v3.channel.k8s.io", "v2.channel.k8s.io")
_WITHOUT_RESIZE = "v2.channel.k8s.io"
_WEBSOCKET = (websocket_channels.V5, websocket_channels.V4, websocket_channels.V4_BASE64)
_NUMBERS = {STDIN: 0, STDOUT: 1, STDERR: 2, ERROR: 3, RESIZE: 4}
_OPENING_SECONDS = 30.0


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which streams the user wants. With a tty there is no stderr."""

    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool

    @classmethod
    def of(cls, request: web.Request) -> StreamOptions:
        """From the query, whose names are not those of the API server's own. Raises BadRequest for no stream at all."""
        on = {name for name in ("input", "output", "error", "tty") if request.query.get(name) in {"1", "true"}}
        if not on & {"input", "output", "error"}:
            raise BadRequest("you must specify at least 1 of stdin, stdout, stderr")
        tty = "tty" in on
        return cls(stdin="input" in on, stdout="output" in on, stderr="error" in on and not tty, tty=tty)

    @property
    def names(self) -> frozenset[str]:
        desired = {STDIN: self.stdin, STDOUT: self.stdout, STDERR: self.stderr, RESIZE: self.tty, ERROR: True}
        return frozenset(name for name, is_wanted in desired.items() if is_wanted)


async def open_connection(request: web.Request, options: StreamOptions) -> Connection:
    """Upgrade the request. Raises a Refusal while it can still be answered, and PeerGone afterwards."""
    upgrade = requested_protocol(request)
    if upgrade == websocket_channels.UPGRADE:
        return await _over_websocket(request, options)
    if upgrade == spdy_upgrade.UPGRADE:
        return await _over_spdy(request, options)
    raise BadRequest("Upgrade request required")


class WebSocketConnection(Channels):
    has_plain_status = False


async def _over_websocket(request: web.Request, options: StreamOptions) -> WebSocketConnection:
    socket = await websocket_channels.shake_hands(request, _WEBSOCKET)
    terminal = WebSocketConnection(socket, {name: _NUMBERS[name] for name in options.names})
    first = min(options.names & {STDOUT, STDERR, ERROR}, key=_NUMBERS.__getitem__)
    await terminal.streams[first].announce()
    return terminal


class SpdyConnection:
    """A `Connection` whose streams are opened by the peer, one by one."""

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
        """Wait for every stream: the program's first byte must have somewhere to go."""
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
    terminal = SpdyConnection(expected, has_plain_status=version != websocket_channels.V4)
    terminal.session = spdy_upgrade.take_over(request, version, terminal.accept)
    await terminal.complete()
    return terminal
