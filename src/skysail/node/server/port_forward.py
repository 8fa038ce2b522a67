"""The route portForward: connects TCP connections of the user's machine to ports in a pod.

There are three protocols: SPDY on the bare connection, SPDY inside a WebSocket, and an older one with a pair of
WebSocket channels for each port of the query. Each yields pairs of a data and an error stream.
"""

from __future__ import annotations

import asyncio
import logging
import struct

from aiohttp import web

from skysail.cloud.errors import ProviderError
from skysail.cloud.provider import PortConnection
from skysail.node.server import websocket_channels
from skysail.node.server.backend import Backend, PodRef
from skysail.node.server.errors import BadRequest, NotSupported, PeerGone
from skysail.node.server.spdy import upgrade as spdy_upgrade
from skysail.node.server.spdy.session import Session, SpdyStream
from skysail.node.server.spdy.tunnel import Tunnel
from skysail.node.server.streams import Stream, negotiate, requested_protocol
from skysail.node.server.websocket_channels import Channels

_PROTOCOL = "portforward.k8s.io"
_TUNNELLED = f"SPDY/3.1+{_PROTOCOL}"
_PORTS = range(1, 2**16)
_MAX_PORTS = 100

log = logging.getLogger(__name__)


class PortForwardHandler:
    def __init__(self, backend: Backend, stopping: asyncio.Event) -> None:
        self._backend = backend
        self._stopping = stopping

    async def serve(self, request: web.Request, pod_ref: PodRef) -> web.StreamResponse:
        pod = self._backend.pod(pod_ref)
        if not self._backend.features.port_forward:
            raise NotSupported(
                "this provider cannot forward ports; reach the pod through a Service or its public address"
            )
        upgrade = requested_protocol(request)
        if upgrade == spdy_upgrade.UPGRADE:
            return await self._over_spdy(request, pod)
        if upgrade != websocket_channels.UPGRADE:
            raise BadRequest("Upgrade request required")
        if negotiate(request, "Sec-WebSocket-Protocol", (_TUNNELLED,)):
            return await self._over_tunnel(request, pod)
        return await self._over_channels(request, pod)

    async def _over_spdy(self, request: web.Request, pod: str) -> web.StreamResponse:
        version = spdy_upgrade.version(request, (_PROTOCOL,))
        async with asyncio.TaskGroup() as tasks:
            stream_pairs = StreamPairs(self._backend, pod, tasks)
            session = spdy_upgrade.take_over(request, version, stream_pairs.accept)
            await self._until_lost(session)
            session.carrier.close()
        return spdy_upgrade.Taken()

    async def _over_tunnel(self, request: web.Request, pod: str) -> web.StreamResponse:
        socket = await websocket_channels.shake_hands(request, (_TUNNELLED,))
        async with asyncio.TaskGroup() as tasks:
            tunnel = Tunnel(socket, StreamPairs(self._backend, pod, tasks).accept)
            running = tasks.create_task(tunnel.run())
            await self._until_lost(tunnel.session)
            tunnel.close()
            await running
        return socket

    async def _until_lost(self, session: Session) -> None:
        """Wait until the session is lost or the server stops. Then all forwarded connections of this session end."""
        lost, stopping = asyncio.create_task(session.lost()), asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({lost, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost.cancel()
            stopping.cancel()
            session.lose()

    async def _over_channels(self, request: web.Request, pod: str) -> web.StreamResponse:
        ports = _ports(request)
        socket = await websocket_channels.shake_hands(request, (websocket_channels.V4,))
        numbers = {
            f"{kind} {i}": 2 * i + part for i in range(len(ports)) for part, kind in enumerate(("data", "error"))
        }
        channels = Channels(socket, numbers)
        try:
            for i, port in enumerate(ports):
                for kind in ("data", "error"):
                    await channels.streams[f"{kind} {i}"].announce(struct.pack("<H", port))
            async with asyncio.TaskGroup() as tasks:
                for i, port in enumerate(ports):
                    data, error = channels.streams[f"data {i}"], channels.streams[f"error {i}"]
                    tasks.create_task(forward(self._backend, pod, port, data, error))
        except PeerGone:
            log.debug("port-forward: client disconnected", extra={"path": request.path})
        return await channels.hang_up()


class StreamPairs:
    """Pairs the two streams of each connection, which come in any order, and forwards them."""

    def __init__(self, backend: Backend, pod: str, tasks: asyncio.TaskGroup) -> None:
        self._backend = backend
        self._pod = pod
        self._tasks = tasks
        self._half: dict[str, SpdyStream] = {}

    def accept(self, stream: SpdyStream) -> None:
        kind, port = stream.headers.get("streamtype", ""), stream.headers.get("port", "")
        if kind not in {"data", "error"} or not port.isdigit() or int(port) not in _PORTS:
            raise BadRequest("a stream needs the headers streamtype (data or error) and port")
        # Old clients send no request id: they open the error stream, and then the data stream with the next number.
        request = stream.headers.get("requestid") or str(stream.number - (2 if kind == "data" else 0))
        other = self._half.pop(request, None)
        if other is None:
            self._half[request] = stream
            return
        if other.headers.get("streamtype") == kind:
            raise BadRequest(f"there are two {kind} streams for one connection")
        data, error = (stream, other) if kind == "data" else (other, stream)
        self._tasks.create_task(forward(self._backend, self._pod, int(port), data, error))


async def forward(backend: Backend, pod: str, port: int, data: Stream, error: Stream) -> None:
    """Forward one TCP connection, from its start to its end. Never raises errors of this connection.

    kubectl prints a message on the error stream and then closes all of its connections, as with any kubelet. So only a
    failed connect sends a message; a connection that breaks later does not.
    """
    try:
        connection = await backend.dial(pod, port)
    except (ProviderError, ConnectionError) as why:
        await _send_error(error, f"error forwarding port {port} to pod {pod}: {why}")
    else:
        await _relay_logged(connection, data, port)
    finally:
        data.finish()
        error.finish()
        data.discard()
        error.discard()


async def _relay_logged(connection: PortConnection, data: Stream, port: int) -> None:
    try:
        await _relay(connection, data)
    except (ProviderError, ConnectionError, PeerGone) as why:
        log.info("forwarded connection ended", extra={"port": port, "why": str(why)})
    finally:
        await connection.close()


async def _relay(connection: PortConnection, data: Stream) -> None:
    """Copy both ways until the pod closes its side or the client disconnects. The client may close its side first."""
    down, up = asyncio.create_task(_receive(connection, data)), asyncio.create_task(_send(connection, data))
    try:
        await asyncio.wait({down, up}, return_when=asyncio.FIRST_COMPLETED)
        if up.done():
            await up
        await down
    finally:
        down.cancel()
        up.cancel()
        await asyncio.gather(down, up, return_exceptions=True)


async def _receive(connection: PortConnection, data: Stream) -> None:
    while piece := await connection.read():
        await data.write(piece)


async def _send(connection: PortConnection, data: Stream) -> None:
    try:
        while piece := await data.read():
            await connection.write(piece)
        await connection.write_eof()
    except (ProviderError, ConnectionError) as error:
        log.debug("pod closed its side of a forwarded connection", extra={"why": str(error)})
        data.discard()


async def _send_error(error: Stream, text: str) -> None:
    try:
        await error.write(text.encode())
    except PeerGone:
        log.debug("port-forward error not sent, client disconnected", extra={"text": text})


def _ports(request: web.Request) -> list[int]:
    texts = [text for value in request.query.getall("port", []) for text in value.split(",")]
    ports = [int(text) for text in texts if text.isdigit() and int(text) in _PORTS]
    if not ports or len(ports) != len(texts) or len(ports) > _MAX_PORTS:
        raise BadRequest('the query parameter "port" must name one or more ports, such as port=80,81')
    return ports
