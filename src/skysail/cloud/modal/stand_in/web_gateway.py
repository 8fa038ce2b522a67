"""The public side of web Functions: an HTTPS server for each address, which turns requests into messages of ASGI."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import socket
import ssl
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial

from aiohttp import WSMsgType, web
from modal_proto import api_pb2

from skysail.cloud.modal.stand_in.faults import FaultScript
from skysail.cloud.modal.stand_in.web_call import Result, WebCall
from skysail.cloud.modal.stand_in.web_function import WebFunction

# Pseudo RPC of the fault script: each request to a web Function.
WEB_REQUEST = "WebRequest"
_HOST = "127.0.0.1"
# The service answers a slower request with a redirect to its result.
_REDIRECT_SECONDS = 150.0
_CALL_ID = "__modal_function_call_id"
_CHUNK = 512 * 1024
_MAX_KEPT = 1000
_FAILURES = {
    Result.GENERIC_STATUS_TIMEOUT: (500, "modal-http: function timed out"),
    Result.GENERIC_STATUS_INIT_FAILURE: (500, "modal-http: container failed to start"),
}
_HOP_BY_HOP = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"upgrade"})

Asgi = api_pb2.Asgi


class WebGateway:
    """Listeners by label. An address stays as long as the stand-in, whatever is deployed behind it.

    `tokens` are the proxy tokens of the workspace, secrets by id.
    """

    def __init__(self, tls: ssl.SSLContext, script: FaultScript, tokens: Mapping[str, str]) -> None:
        self._tls = tls
        self._script = script
        self._tokens = tokens
        self._urls: dict[str, str] = {}
        self._runners: list[web.ServerRunner] = []
        self._calls: OrderedDict[str, WebCall] = OrderedDict()
        self.find_function: Callable[[str], WebFunction | None] = lambda _: None
        self.report_port: Callable[[int], None] = lambda _: None

    async def url(self, label: str) -> str:
        """Return the address of a label. The first call opens it."""
        if label not in self._urls:
            listener = socket.create_server((_HOST, 0))
            runner = web.ServerRunner(web.Server(partial(self._serve, label)))
            await runner.setup()
            await web.SockSite(runner, listener, ssl_context=self._tls).start()
            self._runners.append(runner)
            port = listener.getsockname()[1]
            self.report_port(port)
            self._urls[label] = f"https://{_HOST}:{port}"
        return self._urls[label]

    async def close(self) -> None:
        for runner in self._runners:
            await runner.cleanup()

    async def _serve(self, label: str, request: web.BaseRequest) -> web.StreamResponse:
        function = self.find_function(label)
        if function is None or function.is_stopped:
            return _text(404, "modal-http: app for invoked web endpoint is stopped")
        if function.webhook.requires_proxy_auth and not self._is_authorized(request):
            return _text(401, "modal-http: missing credentials for proxy authorization")
        faults = self._script.take(WEB_REQUEST)
        if any(fault.kind == "unavailable" for fault in faults):
            return _text(503, "modal-http: service unavailable")
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return await self._carry_websocket(function, request)
        seconds = next((fault.seconds for fault in faults if fault.kind == "redirected"), _REDIRECT_SECONDS)
        known = request.query.get(_CALL_ID, "")
        return await (self._resume(request, known, seconds) if known else self._begin(function, request, seconds))

    async def _resume(self, request: web.BaseRequest, call_id: str, seconds: float) -> web.StreamResponse:
        """Answer with the result of a slow request."""
        call = self._calls.get(call_id)
        if call is None:
            return _text(404, "modal-http: no such call")
        return await self._answer(request, call, seconds)

    async def _begin(self, function: WebFunction, request: web.BaseRequest, seconds: float) -> web.StreamResponse:
        call = WebCall(_scope(request))
        function.submit(call)
        feeding = asyncio.create_task(_feed(request, call))
        try:
            return await self._answer(request, call, seconds)
        finally:
            if request.transport is None or request.transport.is_closing():
                feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)

    async def _answer(self, request: web.BaseRequest, call: WebCall, seconds: float) -> web.StreamResponse:
        try:
            first = await call.next_answer(seconds)
        except TimeoutError:
            self._calls[call.function_call_id] = call
            while len(self._calls) > _MAX_KEPT:
                self._calls.popitem(last=False)
            location = request.rel_url.update_query({_CALL_ID: call.function_call_id})
            return web.Response(status=303, headers={"Location": str(location)})
        except asyncio.CancelledError:
            await call.send(Asgi(http_disconnect=Asgi.HttpDisconnect()))
            raise
        self._calls.pop(call.function_call_id, None)
        if first is None:
            assert call.result is not None, "a call without messages has ended"
            status, text = _FAILURES.get(call.result.status, (500, "modal-http: internal error"))
            return _text(status, f"{text}: {call.result.exception}")
        return await _stream(request, call, first.http_response_start)

    async def _carry_websocket(self, function: WebFunction, request: web.BaseRequest) -> web.StreamResponse:
        call = WebCall(_websocket_scope(request))
        function.submit(call)
        await call.send(Asgi(websocket_connect=Asgi.WebsocketConnect()))
        first = await call.next_answer()
        if first is None or first.WhichOneof("type") != "websocket_accept":
            return _text(403, "modal-http: the server rejects the WebSocket")
        protocol = first.websocket_accept.subprotocol
        client = web.WebSocketResponse(protocols=(protocol,) if protocol else ())
        await client.prepare(request)
        reading = asyncio.create_task(_read_websocket(client, call))
        try:
            while (message := await call.next_answer()) is not None:
                if message.WhichOneof("type") == "websocket_close":
                    await client.close(code=message.websocket_close.code or 1000)
                    break
                await _send_frame(client, message.websocket_send)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await client.close()
        return client

    def _is_authorized(self, request: web.BaseRequest) -> bool:
        secret = self._tokens.get(request.headers.get("Modal-Key", ""), "")
        given = request.headers.get("Modal-Secret", "")
        return bool(secret) and hmac.compare_digest(secret.encode(), given.encode())


async def _feed(request: web.BaseRequest, call: WebCall) -> None:
    """Send the body to the container."""
    async for chunk in request.content.iter_chunked(_CHUNK):
        await call.send(Asgi(http_request=Asgi.HttpRequest(body=chunk, more_body=True)))
    await call.send(Asgi(http_request=Asgi.HttpRequest(body=b"", more_body=False)))


async def _stream(request: web.BaseRequest, call: WebCall, start: api_pb2.Asgi.HttpResponseStart) -> web.StreamResponse:
    answer = web.StreamResponse(status=start.status)
    for name, value in zip(start.headers[::2], start.headers[1::2], strict=True):
        if name.lower() not in _HOP_BY_HOP:
            answer.headers.add(name.decode("latin-1"), value.decode("latin-1"))
    await answer.prepare(request)
    has_more = True
    while has_more:
        message = await call.next_answer()
        if message is None:
            # Only a broken connection shows the client that the answer is incomplete.
            if request.transport is not None:
                request.transport.abort()
            return answer
        body = message.http_response_body
        if body.body:
            try:
                await answer.write(body.body)
            except OSError:
                await call.send(Asgi(http_disconnect=Asgi.HttpDisconnect()))
                return answer
        has_more = body.more_body
    with contextlib.suppress(OSError):
        await answer.write_eof()
    return answer


async def _read_websocket(client: web.WebSocketResponse, call: WebCall) -> None:
    async for message in client:
        frame = Asgi.WebsocketReceive()
        if message.type is WSMsgType.TEXT:
            frame.text = message.data
        elif message.type is WSMsgType.BINARY:
            frame.bytes = message.data
        else:
            continue
        await call.send(Asgi(websocket_receive=frame))
    await call.send(Asgi(websocket_disconnect=Asgi.WebsocketDisconnect(code=client.close_code or 1005)))


async def _send_frame(client: web.WebSocketResponse, frame: api_pb2.Asgi.WebsocketSend) -> None:
    if frame.HasField("text"):
        await client.send_str(frame.text)
    else:
        await client.send_bytes(frame.bytes)


def _scope(request: web.BaseRequest) -> api_pb2.Asgi:
    path, _, query = request.raw_path.partition("?")
    host, port = _peer(request)
    http = Asgi.Http(
        http_version="1.1",
        method=request.method,
        scheme="https",
        path=path,
        query_string=query.encode(),
        headers=_headers(request),
        client_host=host,
        client_port=port,
    )
    return Asgi(http=http)


def _websocket_scope(request: web.BaseRequest) -> api_pb2.Asgi:
    path, _, query = request.raw_path.partition("?")
    host, port = _peer(request)
    protocols = [word.strip() for word in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
    scope = Asgi.Websocket(
        http_version="1.1",
        scheme="wss",
        path=path,
        query_string=query.encode(),
        headers=_headers(request),
        client_host=host,
        client_port=port,
        subprotocols=[word for word in protocols if word],
    )
    return Asgi(websocket=scope)


def _headers(request: web.BaseRequest) -> list[bytes]:
    """Return names and values in turn. The credentials of the proxy are not passed on."""
    dropped = {b"modal-key", b"modal-secret", b"transfer-encoding"}
    return [part for row in request.raw_headers if row[0].lower() not in dropped for part in (row[0].lower(), row[1])]


def _peer(request: web.BaseRequest) -> tuple[str, int]:
    peer = request.transport.get_extra_info("peername") if request.transport else None
    return (peer[0], peer[1]) if peer else ("", 0)


def _text(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n")
