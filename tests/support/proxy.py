"""A recording proxy between an operator and the API server: it lets a test decide what the network does.

It lives in the test's process, in a thread with its own event loop, and listens inside the local cluster. The operator
needs no test hooks: it gets another kubeconfig.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

import aiohttp
import msgspec
from aiohttp import web
from yarl import URL

from skysail.kube.client import kubeconfig
from skysail.kube.client.kubeconfig import load_certificate
from skysail.local import addresses
from skysail.local.control_plane import credentials, pki

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path
    from types import TracebackType

    from tests.support.cluster import Cluster

# Between two neighbours, not from end to end.
_HOP_BY_HOP = {"connection", "host", "keep-alive", "transfer-encoding", "content-length", "upgrade"}
# Long, because a machine may be busy with other things; no test passes by waiting.
_TIMEOUT_SECONDS = 600.0


class Seen(msgspec.Struct, kw_only=True):
    """One request, as the proxy saw it. The status is 0 until the API server has answered."""

    method: str
    path: str
    query: dict[str, str]
    body: bytes = b""
    status: int = 0

    @property
    def is_mutating(self) -> bool:
        return self.method not in {"GET", "HEAD", "OPTIONS"}

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") in {"1", "true"}


class Cut(Exception):
    """Raised by a fault: the operator's connection is cut now."""


class Fault:
    """What goes wrong with one request. This one is the fault that does nothing."""

    sends = 1  # how often the API server gets the request
    is_last = False  # whether the operator hears and sends nothing beside it

    async def before(self) -> web.Response | None:
        """Before the API server hears of it. A response is given instead of asking the server."""

    async def done(self) -> None:
        """After the API server did it, and before the operator hears of it."""

    async def replied(self) -> None:
        """After the operator was told."""

    async def events(self, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """What the operator gets of a watch."""
        async for line in lines:
            yield line


class Kill(Fault):
    """The operator dies after the server did it: before the reply reaches it, or just after."""

    is_last = True

    def __init__(self, kill: Callable[[], None], *, after_reply: bool = False) -> None:
        self._kill = kill
        self._after_reply = after_reply

    async def done(self) -> None:
        if not self._after_reply:
            await asyncio.to_thread(self._kill)
            raise Cut

    async def replied(self) -> None:
        if self._after_reply:
            await asyncio.to_thread(self._kill)


class CutBefore(Fault):
    """The connection breaks before the server hears of the request."""

    async def before(self) -> web.Response | None:
        raise Cut


class DropReply(Fault):
    """The server did it, and the operator never learns that."""

    async def done(self) -> None:
        raise Cut


class Repeat(Fault):
    """The server gets the request twice, and the operator hears the second answer."""

    sends = 2


class Hold(Fault):
    """The request waits at the proxy until the test lets it go."""

    def __init__(self) -> None:
        self._gate = threading.Event()

    def let_go(self) -> None:
        self._gate.set()

    async def before(self) -> web.Response | None:
        await asyncio.to_thread(self._gate.wait)
        return None


class Answer(Fault):
    """The proxy answers with a Status object of its own, and the server hears nothing."""

    def __init__(self, code: int, reason: str) -> None:
        self._status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}

    async def before(self) -> web.Response | None:
        return web.json_response(self._status, status=self._status["code"])


def gone() -> Answer:
    """410 as the status of the reply."""
    return Answer(410, "Expired")


class GoneInStream(Fault):
    """410 as an event, as the server says it after a watch was opened."""

    async def events(self, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410, "reason": "Expired"}
        yield msgspec.json.encode({"type": "ERROR", "object": status}) + b"\n"


class CutWatch(Fault):
    """The watch breaks off after so many events."""

    def __init__(self, after: int = 0) -> None:
        self._left = after

    async def events(self, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        if self._left == 0:
            raise Cut
        async for line in lines:
            yield line
            self._left -= 1
            if self._left == 0:
                raise Cut


class DropEvent(Fault):
    """The events that match are lost; the watch goes on as if nothing had been."""

    def __init__(self, match: Callable[[dict[str, Any]], bool]) -> None:
        self._match = match

    async def events(self, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for line in lines:
            if not self._match(msgspec.json.decode(line)):
                yield line


def silence() -> DropEvent:
    """The watch stays open and says nothing any more: a dead peer that no packet has betrayed yet."""
    return DropEvent(lambda _: True)


class RepeatEvent(DropEvent):
    """The events that match come twice."""

    async def events(self, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for line in lines:
            yield line
            if self._match(msgspec.json.decode(line)):
                yield line


class _Rule(msgspec.Struct):
    match: Any
    fault: Any
    skip: int
    times: int


class Proxy:
    """`with Proxy(cluster) as proxy:`, then start an operator with `proxy.kubeconfig`."""

    def __init__(self, cluster: Cluster, identity: pki.Identity = credentials.OPERATOR) -> None:
        self._cluster = cluster
        self._identity = identity
        self._rules: list[_Rule] = []
        self._deaths = 0
        self._passing = asyncio.Event()
        self._passing.set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._cleanup: Callable[[], Coroutine[Any, Any, None]] | None = None
        self.seen: list[Seen] = []
        self.kubeconfig: Path = cluster.home.credentials / "through-proxy.kubeconfig"

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._serve(self._listen()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._cleanup is not None, "entered"
        self._run(self._cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def on(self, match: Callable[[Seen], bool], fault: Fault, *, nth: int = 1, times: int = 1) -> None:
        """Let this go wrong with the nth request that matches from now on, and with `times` - 1 after it."""
        self._rules.append(_Rule(match, fault, nth - 1, times))

    def clear(self) -> None:
        """From now on everything goes well, and what was seen is forgotten."""
        self.forget_rules()
        self.seen.clear()

    def forget_rules(self) -> None:
        """From now on everything goes well."""
        self._rules.clear()

    @property
    def mutations(self) -> list[Seen]:
        return [seen for seen in self.seen if seen.is_mutating]

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        waited: Future[None] = asyncio.run_coroutine_threadsafe(work, self._loop)
        waited.result(timeout=_TIMEOUT_SECONDS)

    def _listen(self) -> socket.socket:
        """Listen, and tell the operator where."""
        listener = self._cluster.listen()
        now, authority = datetime.now(UTC), pki.ensure(self._cluster.home.pki, datetime.now(UTC))
        server = f"https://{addresses.CLUSTER_IP}:{listener.getsockname()[1]}"
        credentials.write(self.kubeconfig, authority, self._identity, server=server, now=now)
        return listener

    async def _serve(self, listener: socket.socket) -> None:
        stack = contextlib.AsyncExitStack()
        session, server = await stack.enter_async_context(self._upstream())

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            return await self._handle(request, session, server)

        runner = web.ServerRunner(web.Server(handle), shutdown_timeout=0.1)
        await runner.setup()
        await web.SockSite(runner, listener, ssl_context=self._tls()).start()

        async def cleanup() -> None:
            await runner.cleanup()
            await stack.aclose()
            await _let_connections_end()

        self._cleanup = cleanup

    @contextlib.asynccontextmanager
    async def _upstream(self) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
        """A session for requests that are passed on, and the address to which."""
        access = kubeconfig.from_file(self._cluster.user(self._identity.name, *self._identity.groups))
        connector = aiohttp.TCPConnector(ssl=access.tls, limit=0)
        patience = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=patience, auto_decompress=False) as session:
            yield session, access.server

    def _tls(self) -> ssl.SSLContext | None:
        key_pair = self._cluster.certificate(addresses.CLUSTER_IP)
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        load_certificate(tls, key_pair.certificate, key_pair.key)
        return tls

    def _is_stream(self, seen: Seen) -> bool:
        return seen.is_watch

    async def _handle(
        self, request: web.BaseRequest, session: aiohttp.ClientSession, server: str
    ) -> web.StreamResponse:
        body = await request.content.read()
        seen = Seen(method=request.method, path=request.path, query=dict(request.query), body=body)
        self.seen.append(seen)
        fault = self._fault_for(seen)
        try:
            await self._pass(fault)
            if response := await fault.before():
                return response
            return await self._forward(request, seen, fault, (session, server))
        except Cut:
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=502)
        finally:
            if fault.is_last:
                self._deaths += 1
                self._passing.set()

    async def _pass(self, fault: Fault) -> None:
        """Where one request is the last one, all others wait for the death of who sent them, and are never sent."""
        deaths = self._deaths
        await self._passing.wait()
        if self._deaths != deaths:
            raise Cut
        if fault.is_last:
            self._passing.clear()

    def _fault_for(self, seen: Seen) -> Fault:
        for rule in self._rules:
            if not rule.match(seen):
                continue
            if rule.skip > 0:
                rule.skip -= 1
            elif rule.times > 0:
                rule.times -= 1
                return rule.fault  # type: ignore[no-any-return]
        return Fault()

    async def _forward(
        self, request: web.BaseRequest, seen: Seen, fault: Fault, to: tuple[aiohttp.ClientSession, str]
    ) -> web.StreamResponse:
        session, server = to
        body = seen.body
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        url = URL(server + request.raw_path, encoded=True)
        for _ in range(fault.sends - 1):
            async with session.request(request.method, url, headers=headers, data=body or None) as first:
                await first.read()
        async with session.request(request.method, url, headers=headers, data=body or None) as upstream:
            seen.status = upstream.status
            response = web.StreamResponse(status=upstream.status)
            response.headers.update(
                {name: value for name, value in upstream.headers.items() if name.lower() not in _HOP_BY_HOP}
            )
            if self._is_stream(seen) and upstream.status == 200:
                try:
                    await response.prepare(request)
                    async for line in fault.events(_lines(upstream)):
                        await self._pass(fault)
                        await response.write(line)
                    await response.write_eof()
                finally:
                    _abort(upstream)
                return response
            content = await upstream.read()
        await fault.done()
        await response.prepare(request)
        await response.write_eof(content)
        await fault.replied()
        return response


def _abort(upstream: aiohttp.ClientResponse) -> None:
    """A watch that is left in the middle would stay for a polite good-bye, beyond the end of the loop."""
    if upstream.connection is not None and upstream.connection.transport is not None:
        upstream.connection.transport.abort()


async def _let_connections_end() -> None:
    """A connection that was closed is let go some turns of the loop later."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    for _ in range(5):
        await asyncio.sleep(0)


async def _lines(upstream: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in upstream.content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line + b"\n"
