"""Server of simulated accounts, below /NAME/v1, for clients with the token. They outlive the operator.

Faults look on the wire as they would at a real cloud: an aborted connection, a bare 500, a truncated body. Exec, attach
and port connections are WebSockets whose first frame says whether the session was opened.
"""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from skysail.base import unix_sockets
from skysail.base.disconnects import tolerate_disconnects
from skysail.cloud.account import CloudAccount, LaunchSpec
from skysail.cloud.errors import Gone, ProviderError, Rejected
from skysail.cloud.simulated.faults import LostReply
from skysail.cloud.simulated.http import server_sessions
from skysail.cloud.simulated.http.protocol import ErrorMessage

# A launch spec contains the files of its volumes.
_MAX_REQUEST_BYTES = 64 * 2**20

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def serve(accounts: Iterable[CloudAccount], token: str, path: Path) -> web.AppRunner:
    """Listen on a Unix socket that only its owner may use. The runner's `cleanup` stops the server.

    Never on a port: a process in the same network, such as a pod with `hostNetwork`, could read the token and the
    secrets in launch specs.

    A handler is cancelled when its client disconnects; otherwise the handler of a silent program's output would never
    end. This is safe, because calls of an account continue if their caller is cancelled.
    """
    app = _application(accounts, token)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True)
    await runner.setup()
    await web.SockSite(runner, unix_sockets.listen(path)).start()
    return runner


def _application(accounts: Iterable[CloudAccount], token: str) -> web.Application:
    service = _Service({account.name: account for account in accounts}, token)
    app = web.Application(client_max_size=_MAX_REQUEST_BYTES, middlewares=[tolerate_disconnects, service.answer])
    base = "/{cloud}/v1"
    app.router.add_post(f"{base}/instances", service.create)
    app.router.add_get(f"{base}/instances", service.list)
    app.router.add_get(f"{base}/offers", service.offers)
    app.router.add_get(f"{base}/instances/{{id}}", service.look)
    app.router.add_delete(f"{base}/instances/{{id}}", service.end)
    app.router.add_delete(f"{base}/volumes/{{id}}", service.delete_volume)
    app.router.add_get(f"{base}/instances/{{id}}/output", service.output)
    app.router.add_get(f"{base}/instances/{{id}}/exec", service.exec)
    app.router.add_get(f"{base}/instances/{{id}}/attach", service.attach)
    app.router.add_get(f"{base}/instances/{{id}}/dial", service.dial)
    app.router.add_get(f"{base}/changes", service.changes)
    return app


class _Service:
    def __init__(self, accounts: dict[str, CloudAccount], token: str) -> None:
        self._accounts = accounts
        self._secret = f"Bearer {token}".encode()

    @web.middleware
    async def answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Authenticate the request, and turn errors into replies."""
        try:
            if not hmac.compare_digest(_authorization(request), self._secret):
                raise Rejected("Unauthorized", "The simulated cloud rejects this token: set a valid one.")
            return await handler(request)
        except LostReply as lost_reply:
            return _lost_reply(request, lost_reply)
        except ProviderError as error:
            error_message = ErrorMessage.of(error)
            return _json(error_message, status=error_message.status)

    async def create(self, request: web.Request) -> web.Response:
        account = self._account(request)
        try:
            spec = msgspec.json.decode(await request.read(), type=LaunchSpec)
        except msgspec.MsgspecError as error:
            raise Rejected("InvalidOrder", f"The launch spec cannot be decoded: {error}.") from error
        return _json(await account.create(spec), status=201)

    async def offers(self, request: web.Request) -> web.Response:
        return _json(await self._account(request).offers())

    async def list(self, request: web.Request) -> web.Response:
        return _json(await self._account(request).list())

    async def look(self, request: web.Request) -> web.Response:
        instance = await self._account(request).get(_id(request))
        if instance is None:
            raise Gone(f"There is no instance {_id(request)}.")
        return _json(instance)

    async def end(self, request: web.Request) -> web.Response:
        await self._account(request).terminate(_id(request), _number(request, "grace"))
        return web.Response(status=202)

    async def delete_volume(self, request: web.Request) -> web.Response:
        await self._account(request).delete_volume("", _id(request))
        return web.Response(status=202)

    async def output(self, request: web.Request) -> web.StreamResponse:
        return await _stream(request, self._account(request).output(_id(request), rank=_rank(request)))

    async def changes(self, request: web.Request) -> web.StreamResponse:
        """Stream changed claims. The first line is empty: it shows that no later change is missed."""
        return await _stream(request, _after_empty_line(self._account(request).watch()))

    async def exec(self, request: web.Request) -> web.WebSocketResponse:
        account, command = self._account(request), tuple(request.query.getall("command", []))
        stdin, tty = _flag(request, "stdin"), _flag(request, "tty")
        rank = _rank(request)
        return await server_sessions.serve_session(
            request, lambda: account.exec(_id(request), command, stdin=stdin, tty=tty, rank=rank)
        )

    async def attach(self, request: web.Request) -> web.WebSocketResponse:
        account, stdin, rank = self._account(request), _flag(request, "stdin"), _rank(request)
        return await server_sessions.serve_session(
            request, lambda: account.attach(_id(request), stdin=stdin, rank=rank)
        )

    async def dial(self, request: web.Request) -> web.WebSocketResponse:
        account, port, rank = self._account(request), int(_number(request, "port")), _rank(request)
        return await server_sessions.serve_connection(request, lambda: account.dial(_id(request), port, rank=rank))

    def _account(self, request: web.Request) -> CloudAccount:
        name = request.match_info["cloud"]
        if name not in self._accounts:
            raise Gone(f"There is no simulated cloud {name}, only {', '.join(self._accounts)}.")
        return self._accounts[name]


async def _stream(request: web.Request, things: AsyncIterator[Any]) -> web.StreamResponse:
    """Stream JSON lines. The first item is awaited before the headers, so that its error can still set the status."""
    first = await anext(things, None)
    reply = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    await reply.prepare(request)
    try:
        if first is not None:
            await reply.write(msgspec.json.encode(first) + b"\n")
        async for thing in things:
            await reply.write(msgspec.json.encode(thing) + b"\n")
        await reply.write_eof()
    except ConnectionError:  # the client has disconnected
        return reply
    return reply


async def _after_empty_line(things: AsyncIterator[str]) -> AsyncIterator[str]:
    yield ""
    async for thing in things:
        yield thing


def _lost_reply(request: web.Request, lost_reply: LostReply) -> web.Response:
    match lost_reply.what:
        case "malformed":
            return web.Response(body=b'{"id": "simul', content_type="application/json")
        case "409":
            return web.Response(status=409)
        case "500" | "500-done":
            return web.Response(status=500, text="Internal Server Error")
        case _:
            assert request.transport is not None, "a request that is being handled has a connection"
            request.transport.abort()
            return web.Response()


def _authorization(request: web.Request) -> bytes:
    """Return the raw header: bytes that are not UTF-8 arrive as surrogates."""
    return request.headers.get("Authorization", "").encode(errors="surrogateescape")


def _id(request: web.Request) -> str:
    return request.match_info["id"]


def _flag(request: web.Request, name: str) -> bool:
    return request.query.get(name) == "1"


def _rank(request: web.Request) -> int:
    return int(_number(request, "rank"))


def _number(request: web.Request, name: str) -> float:
    try:
        return float(request.query.get(name, "0"))
    except ValueError as error:
        raise Rejected("InvalidNumber", f"{name} must be a number.") from error


def _json(content: object, *, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), status=status, content_type="application/json")
