"""The bridge in front of a cloud that forwards only HTTP, with a real server and real connections."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from typing import TYPE_CHECKING

import aiohttp
import pytest
from aiohttp import WSMsgType, web
from yarl import URL

from skysail.base.metrics import Metrics
from skysail.base.open_files import CallerLimits
from skysail.bridge.http_proxy import HttpProxy
from skysail.bridge.listeners import Listeners
from skysail.bridge.proxies import Proxies
from skysail.bridge.routes import Route
from skysail.bridge.traffic import Traffic
from skysail.cloud.errors import OutcomeUnknown
from skysail.cloud.http_address import HttpAddress

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TOKEN = f"canary-{secrets.token_hex(8)}"
LIMIT = 1_000_000
APP = "web.ap-1.c"
PIECE = b"x" * 65536
HUGE = 1024 * len(PIECE)  # 64 MiB, more than all buffers between the server and the client
SEE_OTHER = {
    "/slow": "/slow/2?__modal_function_call_id=fc-1",
    "/slow/2": "/result?__modal_function_call_id=fc-1",
    "/form": "/done",
    "/away": "https://evil.example/",
}


class Server:
    """A server at a cloud. It answers 401 without the token, and some of its paths are slow, endless or broken."""

    def __init__(self) -> None:
        self.seen: list[web.Request] = []
        self.broken = 0
        self.elsewhere = ""
        self.release = asyncio.Event()
        self.sent = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request)
        if request.headers.getall("Authorization", []) != [f"Bearer {TOKEN}"]:
            return web.Response(status=401)
        if self.broken:
            self.broken -= 1
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return await self._answer(request)

    async def _answer(self, request: web.Request) -> web.StreamResponse:  # noqa: PLR0911 (one per path)
        match request.path:
            case "/ws":
                return await self._echo(request)
            case "/events":
                return await self._events(request)
            case "/ws/away":
                return web.Response(status=307, headers={"Location": self.elsewhere})
            case path if path in SEE_OTHER:
                return web.Response(status=303, headers={"Location": SEE_OTHER[path]})
            case "/cut":
                return await self._cut(request)
            case "/hang":
                await self.release.wait()
            case "/raise":
                raise web.HTTPInternalServerError(text="ValueError")
            case "/huge":
                return await self._huge(request)
        body = await request.read()
        return web.Response(text=f"{request.method} {request.raw_path} {len(body)}", headers={"Modal-Key": TOKEN})

    async def _echo(self, request: web.Request) -> web.WebSocketResponse:
        line = web.WebSocketResponse(protocols=("v2", "v1"))
        await line.prepare(request)
        async for message in line:
            if message.type is WSMsgType.TEXT:
                await line.send_str(f"{line.ws_protocol}:{message.data}")
            else:
                await line.send_bytes(message.data[::-1])
        return line

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """The second event is sent only after the test has seen the first one."""
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        await reply.write(b"data: 1\n\n")
        await self.release.wait()
        await reply.write(b"data: 2\n\n")
        return reply

    async def _huge(self, request: web.Request) -> web.StreamResponse:
        reply = web.StreamResponse(headers={"Content-Length": str(HUGE)})
        await reply.prepare(request)
        while self.sent < HUGE:
            await reply.write(PIECE)
            self.sent += len(PIECE)
        return reply

    async def _cut(self, request: web.Request) -> web.StreamResponse:
        reply = web.StreamResponse(headers={"Content-Length": "100"})
        await reply.prepare(request)
        await reply.write(b"half")
        assert request.transport is not None
        request.transport.abort()
        return reply


class Account:
    """Knows the address of the server."""

    def __init__(self, url: str, instance: str) -> None:
        self.url = url
        self.instance = instance
        self.asked = 0
        self.expires: float | None = None
        self.failing = False
        self.token = TOKEN
        self.answers = asyncio.Event()
        self.answers.set()

    async def http_address(self, instance: str, port: int) -> HttpAddress:
        assert (instance, port) == (self.instance, 8000)
        self.asked += 1
        await self.answers.wait()
        if self.failing:
            raise OutcomeUnknown(f"no answer {TOKEN}")
        return HttpAddress(url=self.url, headers=(("Authorization", f"Bearer {self.token}"),), expires=self.expires)


class Harness:
    listeners: Listeners
    route: Route

    def __init__(self, server: Server, account: Account, port: int) -> None:
        self.server = server
        self.account = account
        self.url = f"http://127.0.0.1:{port}"
        self.port = port
        self.metrics = Metrics()
        self.wall = 1000.0


@contextlib.asynccontextmanager
async def bridge(
    max_per_route: int = 100,
    idle_seconds: float = 30.0,
    limits: CallerLimits | None = None,
    linger_seconds: float = 0.0,
    instance: str = "i-1",
) -> AsyncIterator[Harness]:
    server = Server()
    runner = web.ServerRunner(web.Server(server.handle))  # type: ignore[arg-type]
    await runner.setup()
    upstream = web.SockSite(runner, socket.create_server(("127.0.0.1", 0)))
    await upstream.start()
    account = Account(f"http://127.0.0.1:{runner.addresses[0][1]}", instance)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    harness = Harness(server, account, port)
    traffic = Traffic(harness.metrics, max_connections=100, max_connections_per_route=max_per_route)
    proxy = HttpProxy(account, traffic, idle_seconds=idle_seconds, max_request_bytes=LIMIT, wall=lambda: harness.wall)
    listeners = Listeners("127.0.0.1", {"modal": Proxies(http=proxy)}, limits, linger_seconds=linger_seconds)
    route = Route(
        port=port,
        target_port=8000,
        claim="c",
        provider="modal",
        account="a",
        instance=instance,
        namespace="n",
        owner="web",
    )
    await listeners.sync({port: route})
    harness.listeners, harness.route = listeners, route
    try:
        yield harness
    finally:
        server.release.set()
        await listeners.close()
        await proxy.close()
        await runner.cleanup()


async def test_http_proxy_adds_credentials_and_returns_none_of_them(caplog):
    caplog.set_level(logging.DEBUG)
    async with bridge() as harness, aiohttp.ClientSession() as client:
        headers = {"Authorization": "Bearer forged", "X-Mine": "1"}
        url = URL(f"{harness.url}/a//b?x=%2F", encoded=True)
        async with client.post(url, data=b"12345", headers=headers) as reply:
            assert (reply.status, await reply.text()) == (200, "POST /a//b?x=%2F 5")
            assert TOKEN not in str(reply.headers)
    (request,) = harness.server.seen
    assert request.headers["X-Mine"] == "1"
    assert request.headers["X-Forwarded-Host"] == f"127.0.0.1:{harness.port}"
    assert TOKEN not in caplog.text
    assert 'skysail_bridge_requests_total{namespace="n",outcome="ok",owner="web",port="8000"} 1.0' in (
        harness.metrics.render().decode()
    )


async def test_listener_closes_connections_above_the_limit_of_a_caller_also_without_a_request():
    async with bridge(limits=CallerLimits(total=10, per_caller=2)) as harness:

        async def connect(source: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection("127.0.0.1", harness.port, local_addr=(source, 0))
            writer.write(b"GET / HT")
            return reader, writer

        opened = [await connect("127.0.0.2") for _ in range(3)]
        last, _ = opened[-1]
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionResetError):
                assert await last.read() == b""
        reader, writer = await connect("127.0.0.3")
        writer.write(b"TP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        for _, each in (*opened, (reader, writer)):
            each.close()


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET /hang HTTP/1.1\r\nHost: x\r\n\r\n"])
async def test_port_with_an_open_connection_is_closed_at_once(sent: bytes):
    """A connection that never ends must not keep the bridge from following its routes."""
    async with bridge() as harness:
        _, writer = await asyncio.open_connection("127.0.0.1", harness.port)
        writer.write(sent)
        while sent.endswith(b"\r\n") and not harness.server.seen:  # noqa: ASYNC110 (no event tells)
            await asyncio.sleep(0)
        try:
            async with asyncio.timeout(10):
                await harness.listeners.sync({})
        finally:
            writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", harness.port)


async def test_port_that_is_closed_finishes_its_open_requests():
    """As when a new claim takes an App over: the old claim ends at once, and its port with it."""
    async with bridge() as harness, aiohttp.ClientSession() as client, client.get(f"{harness.url}/events") as reply:
        assert await reply.content.readuntil(b"\n\n") == b"data: 1\n\n"
        await harness.listeners.sync({})
        harness.server.release.set()
        assert await reply.read() == b"data: 2\n\n"


async def test_bridge_that_ends_finishes_its_open_requests():
    async with bridge() as harness, aiohttp.ClientSession() as client, client.get(f"{harness.url}/events") as reply:
        assert await reply.content.readuntil(b"\n\n") == b"data: 1\n\n"
        closing = asyncio.create_task(harness.listeners.close(finish_seconds=60))
        while await _is_open(harness.port):  # noqa: ASYNC110 (no event tells)
            await asyncio.sleep(0)
        harness.server.release.set()
        assert await reply.read() == b"data: 2\n\n"
        await closing


async def test_bridge_that_ends_waits_for_an_open_request_only_for_a_while():
    async with bridge() as harness, aiohttp.ClientSession() as client, client.get(f"{harness.url}/events") as reply:
        assert await reply.content.readuntil(b"\n\n") == b"data: 1\n\n"
        await harness.listeners.close(finish_seconds=0.01)
        with pytest.raises(aiohttp.ClientError):
            await reply.read()


async def test_port_that_is_closed_finishes_an_upload_and_closes_its_connection():
    async with bridge() as harness, asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", harness.port)
        writer.write(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nfirst")
        while not harness.server.seen:  # noqa: ASYNC110 (no event tells)
            await asyncio.sleep(0)
        await _until_closed(harness)
        writer.write(b"later")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(b"POST /a 10")
        writer.close()


async def test_port_that_is_closed_carries_a_websocket_until_it_ends():
    async with bridge() as harness, asyncio.timeout(10), aiohttp.ClientSession() as client:
        async with client.ws_connect(f"{harness.url}/ws", protocols=("v2",)) as line:
            await _until_closed(harness)
            for word in ("one", "two"):
                await line.send_str(word)
                assert await line.receive_str() == f"v2:{word}"
        assert line.close_code == 1000


async def _until_closed(harness: Harness) -> None:
    """Close the port, and wait until its idle connections are closed, too."""
    idle, writer = await asyncio.open_connection("127.0.0.1", harness.port)
    await harness.listeners.sync({})
    with contextlib.suppress(ConnectionResetError):
        assert await idle.read() == b""
    writer.close()


async def test_port_that_is_closed_closes_idle_connections_at_once():
    async with bridge() as harness:
        reader, writer = await asyncio.open_connection("127.0.0.1", harness.port)
        writer.write(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        await harness.listeners.sync({})
        async with asyncio.timeout(10):
            await reader.read()
        writer.close()


async def test_websocket_without_a_byte_for_too_long_is_closed():
    async with (
        bridge(idle_seconds=0.2) as harness,
        asyncio.timeout(30),
        aiohttp.ClientSession() as client,
        client.ws_connect(f"{harness.url}/ws") as line,
    ):
        await line.send_str("one")
        assert (await line.receive()).type is WSMsgType.TEXT
        assert (await line.receive()).type in {WSMsgType.CLOSE, WSMsgType.CLOSED}


async def test_websocket_ping_reaches_the_server_and_comes_back():
    async with (
        bridge() as harness,
        asyncio.timeout(10),
        aiohttp.ClientSession() as client,
        client.ws_connect(f"{harness.url}/ws", autoping=False) as line,
    ):
        await line.ping(b"are you there")
        answer = await line.receive()
        assert (answer.type, answer.data) == (WSMsgType.PONG, b"are you there")


async def test_upload_that_stalls_for_too_long_is_answered_and_ends():
    async with bridge(idle_seconds=0.2) as harness, asyncio.timeout(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", harness.port)
        writer.write(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nfirst")
        assert (await reader.readline()).startswith(b"HTTP/1.1 504")
        writer.close()


async def test_answer_that_its_caller_does_not_read_for_too_long_is_cut():
    async with bridge(idle_seconds=0.2) as harness, asyncio.timeout(30):
        _, writer = await asyncio.open_connection("127.0.0.1", harness.port, limit=1)
        writer.write(b"GET /huge HTTP/1.1\r\nHost: x\r\n\r\n")
        while b'outcome="aborted"' not in harness.metrics.render():  # noqa: ASYNC110 (no event tells)
            await asyncio.sleep(0.02)
        assert harness.server.sent < HUGE
        writer.close()


async def _is_open(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return False
    except ConnectionResetError:  # accepted by the kernel while the listener was closed
        return True
    writer.close()
    await writer.wait_closed()
    return True


async def test_port_of_a_web_app_whose_route_is_gone_answers_until_services_know_it():
    async with bridge(linger_seconds=2.0, instance=APP) as harness, aiohttp.ClientSession() as client:
        await harness.listeners.sync({})
        async with client.get(f"{harness.url}/a") as reply:
            assert reply.status == 200
        async with asyncio.timeout(60):
            while await _is_open(harness.port):  # noqa: ASYNC110 (a closed port sends no event)
                await asyncio.sleep(0.05)


async def test_port_of_an_instance_whose_route_is_gone_is_closed_at_once():
    async with bridge(linger_seconds=60.0) as harness:
        await harness.listeners.sync({})
        assert not await _is_open(harness.port)


async def test_port_that_two_claims_have_is_closed_at_once():
    """Also if it is open only because its route has gone: another tenant's Service may lead there."""
    async with bridge(linger_seconds=60.0, instance=APP) as harness:
        await harness.listeners.sync({})
        await harness.listeners.sync({}, {harness.port})
        assert not await _is_open(harness.port)


async def test_port_whose_route_comes_back_stays_open():
    async with bridge(linger_seconds=0.05, instance=APP) as harness, aiohttp.ClientSession() as client:
        await harness.listeners.sync({})
        await harness.listeners.sync({harness.port: harness.route})
        assert harness.listeners._lingering == {}
        async with client.get(f"{harness.url}/a") as reply:
            assert reply.status == 200


async def test_http_proxy_follows_the_redirect_of_a_slow_request_and_no_other():
    async with bridge() as harness, aiohttp.ClientSession() as client:
        async with client.post(f"{harness.url}/slow", data=b"x") as reply:
            assert (reply.status, await reply.text()) == (200, "GET /result?__modal_function_call_id=fc-1 0")
        async with client.post(f"{harness.url}/form", data=b"x", allow_redirects=False) as reply:
            assert (reply.status, reply.headers["Location"]) == (303, "/done")
        async with client.get(f"{harness.url}/away", allow_redirects=False) as reply:
            assert (reply.status, reply.headers["Location"]) == (303, "https://evil.example/")


async def test_http_proxy_streams_events_one_by_one():
    async with bridge() as harness, aiohttp.ClientSession() as client, client.get(f"{harness.url}/events") as reply:
        assert await reply.content.readuntil(b"\n\n") == b"data: 1\n\n"
        harness.server.release.set()
        assert await reply.content.read() == b"data: 2\n\n"


async def test_http_proxy_carries_websockets_both_ways():
    async with bridge() as harness, aiohttp.ClientSession() as client:
        async with client.ws_connect(f"{harness.url}/ws", protocols=("v2", "v3")) as line:
            await line.send_str("hello")
            assert await line.receive_str() == "v2:hello"
            await line.send_bytes(b"abc")
            assert await line.receive_bytes() == b"cba"
        assert "Sec-WebSocket-Key" in harness.server.seen[0].headers


async def test_http_proxy_redirect_of_a_websocket_takes_no_credentials_to_another_server():
    other = Server()
    runner = web.ServerRunner(web.Server(other.handle))  # type: ignore[arg-type]
    await runner.setup()
    await web.SockSite(runner, socket.create_server(("127.0.0.1", 0))).start()
    try:
        async with bridge() as harness, aiohttp.ClientSession() as client:
            harness.server.elsewhere = f"http://127.0.0.1:{runner.addresses[0][1]}/ws"
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                await client.ws_connect(f"{harness.url}/ws/away")
        assert (caught.value.status, other.seen) == (502, [])
    finally:
        await runner.cleanup()


async def test_http_proxy_goes_through_the_proxy_of_the_environment(monkeypatch):
    """The test's server plays the proxy: the host of the address is unknown here."""
    async with bridge() as harness, aiohttp.ClientSession() as client:
        monkeypatch.setenv("http_proxy", harness.account.url)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        harness.account.url = "http://app.invalid"
        async with client.get(f"{harness.url}/a") as reply:
            assert reply.status == 200
        async with client.ws_connect(f"{harness.url}/ws") as line:
            await line.send_bytes(b"abc")
            assert await line.receive_bytes() == b"cba"
    assert [request.headers["Host"] for request in harness.server.seen] == ["app.invalid"] * 2


@pytest.mark.parametrize(("method", "status", "sent"), [("GET", 200, 3), ("POST", 502, 1)])
async def test_http_proxy_retries_only_idempotent_requests(method, status, sent):
    async with bridge() as harness, aiohttp.ClientSession() as client:
        harness.server.broken = 2
        async with client.request(method, f"{harness.url}/") as reply:
            assert reply.status == status
        assert len(harness.server.seen) == sent


async def test_http_proxy_broken_answer_is_never_taken_for_a_whole_one():
    async with bridge() as harness, aiohttp.ClientSession() as client:
        with pytest.raises(aiohttp.ClientError):
            async with client.get(f"{harness.url}/cut") as reply:
                await reply.read()
        assert [request.path for request in harness.server.seen] == ["/cut"], "not sent again after the first byte"


async def test_http_proxy_server_that_hangs_is_a_timeout():
    async with bridge(idle_seconds=0.2) as harness, aiohttp.ClientSession() as client:
        async with client.get(f"{harness.url}/hang") as reply:
            assert reply.status == 504
        harness.server.release.set()
        page = harness.metrics.render().decode()
        assert 'skysail_bridge_requests_total{namespace="n",outcome="unreachable",owner="web",port="8000"} 1.0' in page


async def test_http_proxy_error_of_the_server_is_passed_on():
    async with bridge() as harness, aiohttp.ClientSession() as client, client.get(f"{harness.url}/raise") as reply:
        assert (reply.status, await reply.text()) == (500, "ValueError")
        page = harness.metrics.render().decode()
        assert 'skysail_bridge_requests_total{namespace="n",outcome="failed",owner="web",port="8000"} 1.0' in page
    assert len(harness.server.seen) == 1, "an answer is not retried, whatever its status"


async def test_http_proxy_huge_answer_waits_for_the_client():
    """The bridge holds a part of an answer, and never more than its buffers."""
    async with bridge() as harness, aiohttp.ClientSession() as client, client.get(f"{harness.url}/huge") as reply:
        first = await reply.content.readexactly(1)
        sent = -1
        while sent != harness.server.sent:  # until no buffer takes more
            sent = harness.server.sent
            await asyncio.sleep(0.2)
        assert sent < HUGE // 2
        size = len(first)
        async for chunk in reply.content.iter_any():
            size += len(chunk)
        assert size == HUGE


async def _chunks(size: int) -> AsyncIterator[bytes]:
    """A body without a Content-Length."""
    for begin in range(0, size, 1000):
        yield b"x" * min(1000, size - begin)


async def test_http_proxy_body_above_the_limit_is_refused():
    async with bridge() as harness, aiohttp.ClientSession() as client:
        async with client.post(f"{harness.url}/", data=b"x" * (LIMIT + 1)) as reply:
            assert reply.status == 413
        async with client.post(f"{harness.url}/", data=_chunks(LIMIT + 1)) as reply:
            assert reply.status == 413
        async with client.post(f"{harness.url}/", data=b"x" * LIMIT) as reply:
            assert await reply.text() == f"POST / {LIMIT}"


async def test_http_proxy_asks_again_for_an_address_that_expires():
    async with bridge() as harness, aiohttp.ClientSession() as client:
        harness.account.expires = 1100.0
        for wall, asked in ((1000.0, 1), (1010.0, 1), (1090.0, 2)):
            harness.wall = wall
            async with client.get(f"{harness.url}/") as reply:
                assert reply.status == 200
            assert harness.account.asked == asked


async def test_http_proxy_asks_again_for_an_address_whose_credentials_are_rejected():
    """But not with each such answer: a tenant's own server may give them, and the cloud's API is slow."""
    async with bridge() as harness, aiohttp.ClientSession() as client:
        harness.account.token = "revoked"
        for wall, status, asked in ((1000.0, 401, 1), (1010.0, 401, 1), (1070.0, 401, 1), (1080.0, 200, 2)):
            harness.wall = wall
            async with client.get(f"{harness.url}/") as reply:
                assert reply.status == status
            assert harness.account.asked == asked
            harness.account.token = TOKEN


async def test_http_proxy_unknown_address_is_a_bad_gateway_without_secrets(caplog):
    caplog.set_level(logging.DEBUG)
    async with bridge() as harness, aiohttp.ClientSession() as client:
        harness.account.failing = True
        async with client.get(f"{harness.url}/") as reply:
            assert (reply.status, await reply.text()) == (502, "The server at the cloud cannot be reached.\n")
    assert TOKEN not in caplog.text


async def test_http_proxy_too_many_requests_are_refused():
    async with (
        bridge(max_per_route=1) as harness,
        aiohttp.ClientSession() as client,
        client.get(f"{harness.url}/events") as first,
    ):
        assert await first.content.readuntil(b"\n\n") == b"data: 1\n\n"
        async with client.get(f"{harness.url}/") as reply:
            assert reply.status == 503


@pytest.mark.parametrize(
    "request_",
    [
        b"GET http://169.254.169.254/ HTTP/1.1\r\nHost: web\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: web\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: web\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
        b"GET / HTTP/1.1\r\nHost: web\r\nX y: 1\r\n\r\n",
        b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n",
    ],
)
async def test_http_proxy_raw_attack_reaches_no_server(request_):
    async with bridge() as harness:
        reader, writer = await asyncio.open_connection("127.0.0.1", harness.port)
        writer.write(request_)
        status = await reader.readline()
        writer.close()
        assert status.split()[1] == b"400"
        assert harness.server.seen == []


async def test_http_proxy_concurrent_requests_ask_once_for_the_address():
    async with bridge() as harness, aiohttp.ClientSession() as client:

        async def status() -> int:
            async with client.get(harness.url) as reply:
                return reply.status

        harness.account.answers.clear()
        calls = [asyncio.create_task(status()) for _ in range(20)]
        first = asyncio.create_task(status())
        open_ = b'skysail_bridge_open_connections{namespace="n",owner="web",port="8000"} 21.0'
        while open_ not in harness.metrics.render():  # noqa: ASYNC110 (no event tells)
            await asyncio.sleep(0)
        first.cancel()
        harness.account.answers.set()
        assert await asyncio.gather(*calls) == [200] * 20
        assert harness.account.asked == 1


async def test_http_proxy_failing_server_keeps_its_new_address():
    async with bridge() as harness, aiohttp.ClientSession() as client:
        for wall, asked in ((1000.0, 1), (1010.0, 1), (1070.0, 2)):
            harness.wall, harness.server.broken = wall, 100
            async with client.get(harness.url) as reply:
                assert reply.status == 502
            assert harness.account.asked == asked
