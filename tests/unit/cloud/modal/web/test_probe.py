"""The probe of a web App, with real servers: a tenant's program answers, so no answer may harm the operator."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import secrets
import socket
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from skysail.cloud.errors import OutcomeUnknown, Rejected
from skysail.cloud.modal.web.probe import READY_PATH, probe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

HEADERS = (("Modal-Key", f"wk-{secrets.token_hex(4)}"), ("Modal-Secret", f"ws-{secrets.token_hex(8)}"))
RESULT = f"{READY_PATH}?__modal_function_call_id=fc-1"


class Server:
    """Answers with the rows in turn, and with the last one for ever: a status, headers and a text."""

    def __init__(self, *answers: tuple[int, dict[str, str], str]) -> None:
        self.answers = list(answers)
        self.seen: list[web.BaseRequest] = []

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.seen.append(request)
        status, headers, text = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return web.Response(status=status, headers=headers, text=text)


@contextlib.asynccontextmanager
async def serving(handle: Handler) -> AsyncIterator[str]:
    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    await web.SockSite(runner, socket.create_server(("127.0.0.1", 0))).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_probe_redirect_takes_no_credentials_to_another_server(status: int):
    other = Server((200, {}, ""))
    async with serving(other.handle) as elsewhere:
        tenant = Server((status, {"Location": f"{elsewhere}{RESULT}"}, ""))
        async with serving(tenant.handle) as url:
            await probe(url, HEADERS, 30.0)
    assert [request.headers["Modal-Key"] for request in tenant.seen] == [HEADERS[0][1]]
    assert other.seen == []


async def test_probe_follows_the_redirects_of_a_slow_request():
    broken = (500, {"X-Skysail-Problem": "HandlerNotFound"}, '{"error": "no module"}')
    server = Server((303, {"Location": RESULT}, ""), (303, {"Location": RESULT}, ""), broken)
    async with serving(server.handle) as url:
        with pytest.raises(Rejected) as error:
            await probe(url, HEADERS, 30.0)
    assert (error.value.reason, str(error.value)) == ("HandlerNotFound", "no module")
    assert [request.headers["Modal-Secret"] for request in server.seen] == [HEADERS[1][1]] * 3


async def test_probe_endless_redirects_are_no_answer():
    server = Server((303, {"Location": RESULT}, ""))
    async with serving(server.handle) as url:
        with pytest.raises(OutcomeUnknown):
            await probe(url, HEADERS, 0.5)


async def test_probe_reads_only_the_begin_of_an_answer():
    """The body never ends, so a probe that read all of it would never return."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        reply = web.StreamResponse()
        await reply.prepare(request)
        with contextlib.suppress(OSError):
            while True:
                await reply.write(b"x" * 65536)
        return reply

    async with serving(handle) as url:
        await probe(url, HEADERS, 10.0)


async def test_probe_unpacks_no_answer():
    packed = gzip.compress(b"x" * 2**20)

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        assert request.headers["Accept-Encoding"] == "identity"
        headers = {"Content-Encoding": "gzip", "X-Skysail-Problem": "HandlerNotFound"}
        return web.Response(status=500, headers=headers, body=packed)

    async with serving(handle) as url:
        with pytest.raises(Rejected) as error:
            await probe(url, HEADERS, 10.0)
    assert len(str(error.value)) <= len(packed)


async def test_probe_goes_through_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch):
    """The host is unknown here, as it is in a cluster whose only way out is a proxy."""
    proxy = Server((200, {}, "ready"))
    async with serving(proxy.handle) as url:
        monkeypatch.setenv("http_proxy", url)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        await probe("http://app.invalid", HEADERS, 10.0)
    assert [request.headers["Host"] for request in proxy.seen] == ["app.invalid"]


@pytest.mark.parametrize("status", [403, 407, 502])
async def test_probe_proxy_rejects_the_tunnel_error_has_no_password(monkeypatch: pytest.MonkeyPatch, status: int):
    """The error ends in the events of a tenant's pod."""
    logins = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        logins.extend(line for line in head.splitlines() if line.lower().startswith(b"proxy-authorization: "))
        writer.write(f"HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        for name in ("https_proxy", "HTTPS_PROXY"):
            monkeypatch.setenv(name, f"http://alice:canary@127.0.0.1:{port}")
        monkeypatch.setenv("no_proxy", "")
        with pytest.raises(OutcomeUnknown, match=str(status)) as error:
            await probe("https://app.invalid", HEADERS, 1.0)
    assert "canary" not in str(error.value)
    assert logins[0].split()[-1] == base64.b64encode(b"alice:canary")
