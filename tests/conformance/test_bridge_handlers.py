"""Programs behind the bridge at the stand-in of Modal: they hang, stream, raise, answer late and speak WebSocket."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

import aiohttp
import pytest

from skysail.base.metrics import Metrics
from skysail.bridge.http_proxy import HttpProxy
from skysail.bridge.listeners import Listeners
from skysail.bridge.proxies import Proxies
from skysail.bridge.routes import Route
from skysail.bridge.traffic import Traffic
from skysail.cloud.modal.stand_in.faults import Fault
from tests.support.modal import stand_in
from tests.unit.cloud.modal.stand_in.test_web_apps import launch, open_account

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from skysail.cloud.account import LaunchSpec
    from tests.support.modal import StandInHarness

LARGE = 16 * 2**20
HANDLER = f"""
import threading
going = threading.Event()
def events():
    yield "data: first\\n\\n"
    going.wait()
    yield "data: last\\n\\n"
def large():
    for _ in range({LARGE} // 2**20): yield b"x" * 2**20
def breaks():
    yield "data: first\\n\\n"
    raise OSError("canary-secret")
def handler(request):
    if request.path == "/hang": threading.Event().wait()
    if request.path == "/raise": raise ValueError("canary-secret")
    if request.path == "/events": return events()
    if request.path == "/large": return large()
    if request.path == "/breaks": return breaks()
    if request.path == "/go": going.set()
    if request.path == "/slow": threading.Event().wait(1)
    return f"{{request.method}} {{len(request.body)}}"
"""
# Answers WebSockets with what they say, and other requests with a greeting.
ECHO = """
import base64, hashlib, socketserver
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        lines = list(iter(lambda: self.rfile.readline().decode().strip(), ""))[1:]
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        if "sec-websocket-key" not in headers:
            self.wfile.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\nConnection: close\\r\\n\\r\\nhi"); return
        key = headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.wfile.write(("HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n"
                          f"Sec-WebSocket-Accept: {accept}\\r\\n\\r\\n").encode())
        while True:
            first, size = self.rfile.read(2); mask = self.rfile.read(4); data = self.rfile.read(size & 127)
            data = bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
            self.wfile.write(bytes([first, len(data)]) + data)
            if first & 15 == 8: return
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
Server(("0.0.0.0", 8123), Handler).serve_forever()
"""


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[StandInHarness]:
    async with stand_in(tmp_path) as harness:
        yield harness


@contextlib.asynccontextmanager
async def bridged(cloud: StandInHarness, spec: LaunchSpec) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    """Deploy an App. Yields the URL of a bridge in front of it, and a client."""
    account = open_account(cloud)
    instance = (await account.create(spec)).id
    traffic = Traffic(Metrics(), max_connections=100, max_connections_per_route=100)
    proxy = HttpProxy(account, traffic, idle_seconds=60.0, max_request_bytes=2**20)
    listeners = Listeners("127.0.0.1", {"modal": Proxies(http=proxy)})
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    names = {"claim": "c1", "provider": "modal", "account": "a", "namespace": "team", "owner": "web"}
    await listeners.sync({port: Route(port=port, target_port=8000, instance=instance, protocol="http", **names)})
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
            yield f"http://127.0.0.1:{port}", client
    finally:
        await listeners.close()
        await proxy.close()
        await account.terminate(instance, 0)
        await account.close()


async def test_handlers_that_hang_stream_raise_and_answer_late_are_carried_as_they_are(cloud: StandInHarness):
    env = {"SKYSAIL_RETURNS": "any", "SKYSAIL_CONCURRENCY": "4", "SKYSAIL_TIMEOUT": "60"}
    spec = launch("c1", code=HANDLER, env=env, options="web,min=0,max=1,inputs=4")
    async with bridged(cloud, spec) as (_, client):
        async with client.get("/raise") as reply:
            assert (reply.status, await reply.json()) == (500, {"error": "ValueError"})
        async with client.get("/events") as reply:
            assert reply.headers["Content-Type"] == "text/event-stream"
            assert await reply.content.readuntil(b"\n\n") == b"data: first\n\n"
            async with client.get("/go") as other:
                assert await other.text() == "GET 0"
            assert await reply.read() == b"data: last\n\n"
        async with client.get("/large") as reply:
            assert len(await reply.read()) == LARGE
        async with client.get("/breaks") as reply:
            assert reply.status == 200
            with pytest.raises(aiohttp.ClientError):
                await reply.read()
        cloud.inject(Fault(rpc="WebRequest", kind="redirected", seconds=0.2, times=1))
        async with client.post("/slow", data=b"abc") as reply:
            assert (reply.status, await reply.text()) == (200, "POST 3")


async def test_handler_that_hangs_is_a_timeout_and_the_next_container_serves(cloud: StandInHarness):
    spec = launch("c1", code=HANDLER, env={"SKYSAIL_RETURNS": "any", "SKYSAIL_TIMEOUT": "1"})
    async with bridged(cloud, spec) as (_, client):
        async with client.post("/hang") as reply:
            assert (reply.status, await reply.json()) == (504, {"error": "TimeoutError"})
        # Until the call has hung for another second, it may only be slow, and the next one waits for its thread.
        answers = []
        while not answers or answers[-1][0] == 504:
            async with client.get("/") as reply:
                answers.append((reply.status, await reply.text()))
        assert answers[-1] == (200, "GET 0")


async def test_own_server_speaks_websocket_through_the_bridge(cloud: StandInHarness):
    spec = launch("c1", code=ECHO, command=("python", "/skysail/app.py"), options="web,port=8123")
    async with bridged(cloud, spec) as (url, client):
        async with client.get("/") as reply:
            assert await reply.text() == "hi"
        async with client.ws_connect(f"{url}/chat") as socket_:
            await socket_.send_str("hello")
            assert await socket_.receive_str(timeout=60) == "hello"
