"""Long and large traffic through the bridge. Its memory is bounded, whatever the size, the length and the number.

Memory is that of this process, which has the server and the clients, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web

from skysail.base.metrics import Metrics
from skysail.bridge.http_proxy import HttpProxy
from skysail.bridge.listeners import Listeners
from skysail.bridge.proxies import Proxies
from skysail.bridge.raw_proxy import RawProxy
from skysail.bridge.routes import Route
from skysail.bridge.traffic import Traffic
from skysail.cloud.http_address import HttpAddress
from skysail.local.provider.sessions import SocketConnection, connect_socket

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.on_demand

PIECE = b"x" * 65536
HUGE = 2 * 2**30
STREAMS = 1_000
EVENTS = 20
REDIRECT_SECONDS = 150.0
MAX_GROWTH = 200 * 2**20
CALL = "__modal_function_call_id=fc-1"


async def handle(request: web.Request) -> web.StreamResponse:
    match request.path:
        case "/huge":
            reply = web.StreamResponse(headers={"Content-Length": str(HUGE)})
            await reply.prepare(request)
            for _ in range(HUGE // len(PIECE)):
                await reply.write(PIECE)
            return reply
        case "/events":
            reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await reply.prepare(request)
            for number in range(EVENTS):
                await reply.write(f"data: {number}\n\n".encode())
                await asyncio.sleep(1.0)
            return reply
        case "/slow":
            await asyncio.sleep(REDIRECT_SECONDS)
            return web.Response(status=303, headers={"Location": f"/result?{CALL}"})
        case "/result":
            await asyncio.sleep(5.0)
    return web.Response(text="done")


class Account:
    """Leads to one server, both ways."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def dial(self, instance: str, port: int, *, rank: int = 0) -> SocketConnection:
        return SocketConnection(await connect_socket("127.0.0.1", self._port))

    async def http_address(self, instance: str, port: int) -> HttpAddress:
        return HttpAddress(url=f"http://127.0.0.1:{self._port}")


@contextlib.asynccontextmanager
async def bridge(protocol: Any) -> AsyncIterator[str]:
    """Yield the URL of a bridge in front of the server."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16_384), hard))
    runner = web.ServerRunner(web.Server(handle))  # type: ignore[arg-type]
    await runner.setup()
    await web.SockSite(runner, socket.create_server(("127.0.0.1", 0), backlog=STREAMS), backlog=STREAMS).start()
    account: Any = Account(runner.addresses[0][1])
    traffic = Traffic(Metrics(), max_connections=2 * STREAMS, max_connections_per_route=2 * STREAMS)
    http = HttpProxy(account, traffic, idle_seconds=600.0, max_request_bytes=2**20)
    listeners = Listeners("127.0.0.1", {"cloud": Proxies(RawProxy(account, traffic, idle_seconds=600.0), http)})
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    names = {"claim": "c", "provider": "cloud", "account": "a", "instance": "i", "namespace": "n", "owner": "web"}
    await listeners.sync({port: Route(port=port, target_port=80, protocol=protocol, **names)})
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await listeners.close()
        await http.close()
        await runner.cleanup()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.asynccontextmanager
async def bounded_memory() -> AsyncIterator[None]:
    """Fail if memory grows by more than the limit at any time."""
    begin, peak = _memory(), 0

    async def sample() -> None:
        nonlocal peak
        while True:
            peak = max(peak, _memory())
            await asyncio.sleep(0.1)

    sampling = asyncio.create_task(sample())
    try:
        yield
    finally:
        sampling.cancel()
    assert peak - begin < MAX_GROWTH, f"memory grew by {(peak - begin) / 2**20:.0f} MiB"


def _memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("protocol", ["tcp", "http"])
async def test_soak_answer_of_two_gigabytes_passes_with_bounded_memory(protocol):
    async with bridge(protocol) as url, _client() as client, bounded_memory(), client.get(f"{url}/huge") as reply:
        size = 0
        async for chunk in reply.content.iter_any():
            size += len(chunk)
        assert size == HUGE


@pytest.mark.parametrize("protocol", ["tcp", "http"])
async def test_soak_thousand_open_streams_get_all_events(protocol):
    expected = b"".join(f"data: {number}\n\n".encode() for number in range(EVENTS))

    async def read(client: aiohttp.ClientSession, url: str) -> bytes:
        async with client.get(f"{url}/events") as reply:
            return await reply.read()

    async with bridge(protocol) as url, _client() as client, bounded_memory():
        answers = await asyncio.gather(*(read(client, url) for _ in range(STREAMS)))
    assert answers == [expected] * STREAMS


async def test_soak_answer_after_the_redirect_of_a_cloud_arrives():
    async with bridge("http") as url, _client() as client, client.post(f"{url}/slow", data=b"x") as reply:
        assert (reply.status, await reply.text()) == (200, "done")


def _client() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None))
