"""Forward HTTP requests by a cloud's own way for HTTP, with the credentials of the account.

Bodies are streamed both ways, so memory does not grow with their size. Server-sent events arrive chunk by chunk, and
WebSockets frame by frame. A request without a byte in either direction for too long ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from functools import partial

import aiohttp
from aiohttp import WSMsgType, web
from multidict import CIMultiDict
from yarl import URL

from skysail.bridge import http_headers
from skysail.bridge.http_headers import BadRequest
from skysail.bridge.routes import Route
from skysail.bridge.traffic import Direction, Traffic
from skysail.cloud import http_address, outbound
from skysail.cloud.errors import ProviderError
from skysail.cloud.http_address import HttpAccount, HttpAddress

_CONNECT_SECONDS = 20.0
_RETRIES = 2
_RETRY_DELAY = 0.2
_MAX_REDIRECTS = 600  # a server that answers each 150 seconds may take a day
_MAX_FRAME_BYTES = 16 * 2**20
# Ask again for an address that expires this soon.
_EXPIRY_MARGIN = 30.0
# After an error, or an answer that rejects the credentials, ask again for an address that is this old. A tenant's own
# server may cause both.
_RENEWAL_SECONDS = 60.0
_REJECTED = frozenset({401, 403})
_BAD_REQUEST, _TOO_LARGE, _BAD_GATEWAY, _UNAVAILABLE, _TIMEOUT = 400, 413, 502, 503, 504
_SERVER_ERROR = 500
_REDIRECTS = frozenset({301, 302, 303, 307, 308})

log = logging.getLogger(__name__)


class _TooLarge(Exception):
    """The body of a request is above the limit."""


class _Redirected(aiohttp.ClientError):
    """A server redirects a WebSocket."""


class _RequestBody:
    """Body of a request, up to a limit."""

    def __init__(self, max_bytes: int, alive: Callable[[], None]) -> None:
        self._max_bytes = max_bytes
        self._alive = alive
        self.is_too_large = False

    async def chunks(self, request: web.BaseRequest, count: Callable[[int], None]) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in request.content.iter_any():
            self._alive()
            size += len(chunk)
            if size > self._max_bytes:
                self.is_too_large = True
                raise _TooLarge
            count(len(chunk))
            yield chunk


class HttpProxy:
    """Forwards requests of all routes to one account. Create it inside the running event loop; call `close` once."""

    def __init__(
        self,
        account: HttpAccount,
        traffic: Traffic,
        *,
        idle_seconds: float,
        max_request_bytes: int,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._account = account
        self._traffic = traffic
        self._idle_seconds = idle_seconds
        self._max_request_bytes = max_request_bytes
        self._wall = wall
        self._addresses: dict[tuple[str, int], HttpAddress] = {}
        self._asked: dict[tuple[str, int], float] = {}
        # Calls for an address. All requests that need the same one wait for the same call.
        self._asking: dict[tuple[str, int], asyncio.Task[HttpAddress]] = {}
        # Without `sock_read`: our own limit of idle time covers silent callers and WebSockets, too.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
        # Bodies pass as they are, and cookies of one tenant's server must never reach another one.
        create_session = partial(
            aiohttp.ClientSession,
            timeout=timeout,
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )
        self._session = create_session(cookie_jar=aiohttp.DummyCookieJar(), connector=aiohttp.TCPConnector(limit=0))
        self._websockets = create_session(
            cookie_jar=aiohttp.DummyCookieJar(),
            connector=aiohttp.TCPConnector(limit=0),
            middlewares=(_reject_redirect,),
        )

    async def close(self) -> None:
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await self._session.close()
        await self._websockets.close()

    async def serve(self, route: Route, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request. An error before the first byte of the answer becomes a status with a reason."""
        if not self._traffic.admit(route):
            return _answer(_UNAVAILABLE, "The bridge has too many open requests for this server: retry later.")
        try:
            return await self._serve(route, request)
        finally:
            self._traffic.leave(route)

    async def _serve(self, route: Route, request: web.BaseRequest) -> web.StreamResponse:
        try:
            http_headers.validate(request.method, request.raw_path, _pairs(request.raw_headers))
            _limit(request.content_length, self._max_request_bytes)
            if _is_websocket(request):
                return await self._carry_websocket(route, request)
            return await self._carry(route, request)
        except BadRequest as error:
            self._traffic.count(route, "rejected")
            return _answer(_BAD_REQUEST, str(error))
        except _TooLarge:
            self._traffic.count(route, "rejected")
            return _answer(_TOO_LARGE, f"The body is above the limit of {self._max_request_bytes} bytes.")
        except TimeoutError:
            self._traffic.count(route, "unreachable")
            return _answer(_TIMEOUT, "The server at the cloud did not answer in time.")
        except (ProviderError, aiohttp.ClientError, OSError) as error:
            log.info("request through the bridge failed", extra={**_fields(route), "why": type(error).__name__})
            self._traffic.count(route, "unreachable")
            return _answer(_BAD_GATEWAY, "The server at the cloud cannot be reached.")

    async def _carry(self, route: Route, request: web.BaseRequest) -> web.StreamResponse:
        begun = asyncio.get_running_loop().time()
        async with asyncio.timeout(self._idle_seconds) as idle:
            reply, address = await self._send_until_answered(route, request, self._keep_alive(idle))
        self._traffic.observe(route, asyncio.get_running_loop().time() - begun)
        if reply.status in _REJECTED:
            self._forget_old((route.instance, route.target_port))
        async with reply:
            return await self._stream_back(route, request, reply, address)

    def _keep_alive(self, idle: asyncio.Timeout) -> Callable[[], None]:
        clock = asyncio.get_running_loop().time
        return lambda: idle.reschedule(clock() + self._idle_seconds)

    async def _send_until_answered(
        self, route: Route, request: web.BaseRequest, alive: Callable[[], None]
    ) -> tuple[aiohttp.ClientResponse, HttpAddress]:
        """Send the request, again after an error if that is safe. `alive` is called for each sign of progress."""
        has_body = request.can_read_body
        attempts = _RETRIES if http_headers.may_retry(request.method, has_body=has_body) else 0
        for attempt in range(attempts + 1):
            try:
                return await self._send(route, request, alive, has_body=has_body)
            except (ProviderError, aiohttp.ClientError, OSError) as error:
                self._forget_old((route.instance, route.target_port))
                if attempt == attempts:
                    raise
                log.debug("request failed, retried", extra={**_fields(route), "why": type(error).__name__})
                await asyncio.sleep(_RETRY_DELAY)
        raise AssertionError("the last attempt returns or raises")

    async def _send(
        self, route: Route, request: web.BaseRequest, alive: Callable[[], None], *, has_body: bool
    ) -> tuple[aiohttp.ClientResponse, HttpAddress]:
        """Send the request, and follow the redirects with which a cloud answers slow requests."""
        address = await self._address(route)
        base = URL(address.url, encoded=True)
        url = http_headers.destination(base, request.raw_path)
        headers = http_headers.request_headers(
            _pairs(request.raw_headers),
            address.headers,
            peer=request.remote or "",
            host=request.headers.get("Host", ""),
        )
        body = _RequestBody(self._max_request_bytes, alive)
        data = body.chunks(request, partial(self._traffic.add_bytes, route, "in")) if has_body else None
        checks = address.verifies
        try:
            reply = await self._request(request.method, url, headers, data, checks=checks)
        except (aiohttp.ClientError, OSError) as error:
            raise _TooLarge if body.is_too_large else error from error
        for _ in range(_MAX_REDIRECTS):
            following = http_address.follows(reply.status, reply.headers.get("Location", ""), base, reply.url)
            if following is None:
                break
            alive()
            reply.release()
            without_body = [row for row in headers if row[0].lower() not in {"content-length", "content-type"}]
            reply = await self._request("GET", following, without_body, None, checks=checks)
        return reply, address

    async def _request(
        self, method: str, url: URL, headers: list[tuple[str, str]], body: AsyncIterator[bytes] | None, *, checks: bool
    ) -> aiohttp.ClientResponse:
        return await self._session.request(
            method,
            url,
            headers=CIMultiDict(headers),
            data=body,
            allow_redirects=False,
            ssl=checks,
            proxy=outbound.http_proxy(url),
        )

    async def _stream_back(
        self, route: Route, request: web.BaseRequest, reply: aiohttp.ClientResponse, address: HttpAddress
    ) -> web.StreamResponse:
        base = URL(address.url, encoded=True)
        headers = http_headers.response_headers(_pairs(reply.raw_headers), address.headers, base)
        answer = web.StreamResponse(status=reply.status, reason=reply.reason, headers=CIMultiDict(headers))
        try:
            async with asyncio.timeout(self._idle_seconds) as idle:
                alive = self._keep_alive(idle)
                await answer.prepare(request)
                async for chunk in reply.content.iter_any():
                    alive()
                    await answer.write(chunk)
                    alive()
                    self._traffic.add_bytes(route, "out", len(chunk))
                await answer.write_eof()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            # The status was sent: only a broken connection tells the caller that the answer is incomplete.
            log.info("answer through the bridge broke", extra={**_fields(route), "why": type(error).__name__})
            self._traffic.count(route, "aborted")
            if request.transport is not None:
                request.transport.abort()
            return answer
        self._traffic.count(route, "failed" if reply.status >= _SERVER_ERROR else "ok")
        return answer

    async def _carry_websocket(self, route: Route, request: web.BaseRequest) -> web.StreamResponse:
        begun = asyncio.get_running_loop().time()
        address = await self._address(route)
        url = http_headers.destination(URL(address.url, encoded=True), request.raw_path)
        protocols = [
            word.strip() for word in request.headers.get("Sec-WebSocket-Protocol", "").split(",") if word.strip()
        ]
        headers = http_headers.request_headers(
            _pairs(request.raw_headers),
            address.headers,
            peer=request.remote or "",
            host=request.headers.get("Host", ""),
            is_websocket=True,
        )
        named = CIMultiDict(row for row in headers if row[0].lower() != "sec-websocket-protocol")
        async with self._websockets.ws_connect(
            url,
            headers=named,
            protocols=protocols,
            max_msg_size=_MAX_FRAME_BYTES,
            autoping=False,
            ssl=address.verifies,
            proxy=outbound.http_proxy(url),
        ) as server:
            self._traffic.observe(route, asyncio.get_running_loop().time() - begun)
            chosen = (server.protocol,) if server.protocol else ()
            client = web.WebSocketResponse(protocols=chosen, max_msg_size=_MAX_FRAME_BYTES, autoping=False)
            await client.prepare(request)
            try:
                async with asyncio.timeout(self._idle_seconds) as idle:
                    await self._join(route, client, server, self._keep_alive(idle))
            except TimeoutError:
                log.info("WebSocket through the bridge was idle for too long", extra=_fields(route))
                self._traffic.count(route, "aborted")
            else:
                self._traffic.count(route, "ok")
            return client

    async def _join(
        self,
        route: Route,
        client: web.WebSocketResponse,
        server: aiohttp.ClientWebSocketResponse,
        alive: Callable[[], None],
    ) -> None:
        up = asyncio.create_task(self._copy(route, client, server, "in", alive))
        down = asyncio.create_task(self._copy(route, server, client, "out", alive))
        try:
            await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (up, down):
                task.cancel()
            await asyncio.gather(up, down, return_exceptions=True)
            with contextlib.suppress(aiohttp.ClientError, OSError):
                await client.close(code=server.close_code or 1000)
                await server.close(code=client.close_code or 1000)

    async def _copy(
        self,
        route: Route,
        source: web.WebSocketResponse | aiohttp.ClientWebSocketResponse,
        sink: web.WebSocketResponse | aiohttp.ClientWebSocketResponse,
        direction: Direction,
        alive: Callable[[], None],
    ) -> None:
        async for message in source:
            alive()
            if message.type is WSMsgType.TEXT:
                await sink.send_str(message.data)
                self._traffic.add_bytes(route, direction, len(message.data.encode()))
            elif message.type is WSMsgType.BINARY:
                await sink.send_bytes(message.data)
                self._traffic.add_bytes(route, direction, len(message.data))
            elif message.type is WSMsgType.PING:
                await sink.ping(message.data)
            elif message.type is WSMsgType.PONG:
                await sink.pong(message.data)

    async def _address(self, route: Route) -> HttpAddress:
        key = (route.instance, route.target_port)
        known = self._addresses.get(key)
        if known is not None and (known.expires is None or known.expires - _EXPIRY_MARGIN >= self._wall()):
            return known
        if key not in self._asking:
            task = self._asking[key] = asyncio.create_task(self._ask(key))
            task.add_done_callback(partial(self._end_asking, key))
        # The call goes on for the others if this caller leaves.
        return await asyncio.shield(self._asking[key])

    async def _ask(self, key: tuple[str, int]) -> HttpAddress:
        found = self._addresses[key] = await self._account.http_address(*key)
        self._asked[key] = self._wall()
        return found

    def _end_asking(self, key: tuple[str, int], task: asyncio.Task[HttpAddress]) -> None:
        self._asking.pop(key, None)
        if not task.cancelled():
            task.exception()  # read here, because all callers may have left

    def _forget_old(self, key: tuple[str, int]) -> None:
        """Forget an address that did not work, unless it is new: each call for an address costs the cloud's quota."""
        if self._wall() - self._asked.get(key, 0.0) > _RENEWAL_SECONDS:
            self._addresses.pop(key, None)

    def forget(self, instances: set[str]) -> None:
        """Forget the addresses of all instances but these."""
        self._addresses = {key: address for key, address in self._addresses.items() if key[0] in instances}
        self._asked = {key: at for key, at in self._asked.items() if key[0] in instances}


async def _reject_redirect(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Fail if a server redirects a WebSocket: the client would send the credentials to the other server, too."""
    reply = await handler(request)
    if reply.status in _REDIRECTS:
        reply.close()
        raise _Redirected
    return reply


def _limit(content_length: int | None, max_bytes: int) -> None:
    if (content_length or 0) > max_bytes:
        raise _TooLarge


def _is_websocket(request: web.BaseRequest) -> bool:
    return request.headers.get("Upgrade", "").lower() == "websocket"


def _pairs(raw: tuple[tuple[bytes, bytes], ...]) -> list[tuple[str, str]]:
    """Return headers as text. Latin-1 keeps every byte."""
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in raw]


def _answer(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n")


def _fields(route: Route) -> dict[str, object]:
    """Return the fields of log lines. Never a URL, a path or a header: they may hold secrets."""
    return {"claim": route.claim, "port": route.port, "target_port": route.target_port}
