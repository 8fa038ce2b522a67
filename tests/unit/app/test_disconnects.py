"""Clients that leave in the middle: every server of ours says so in one line, and none prints a traceback."""

from __future__ import annotations

import asyncio
import re
import struct
import time
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET

import pytest
from aiohttp import web

import skysail
from skysail.base.disconnects import tolerate_disconnects
from skysail.cloud.simulated.account import SimulatedAccount
from skysail.cloud.simulated.http import server as clouds_server
from skysail.cloud.simulated.ledger import Ledger
from skysail.kube.admission import server as admission_server
from skysail.kube.admission.hooks import AdmissionResponse, Hook
from tests.support.node_backend import listening
from tests.unit.cloud.simulated.shop import PLAIN

SOURCES = Path(skysail.__file__).parent
LEFT = "client left before the answer"


def test_every_server_tolerates_clients_that_leave():
    servers = [
        (str(path.relative_to(SOURCES)), made)
        for path in SOURCES.rglob("*.py")
        if path.relative_to(SOURCES).parts[0] != "runtimes"  # those stand alone, in users' pods
        for made in re.findall(r"web\.Application\((.*)\)", path.read_text())
    ]
    assert len(servers) >= 6
    for path, made in servers:
        assert "middlewares=[tolerate_disconnects" in made, f"{path}: it comes first"


def admission() -> web.Application:
    return admission_server.application([Hook(name="hook", rules=(), admit=lambda _new, _old: AdmissionResponse())])


def clouds() -> web.Application:
    account = SimulatedAccount(PLAIN, Ledger(), now=time.time)
    account.inject_orphan()
    return clouds_server._application([account], "right")


def slow() -> web.Application:
    """Answers each in its way when the caller has gone."""
    app = web.Application(middlewares=[tolerate_disconnects])

    async def gone(request: web.Request) -> None:
        while request.transport is not None:  # noqa: ASYNC110 (aiohttp tells nobody)
            await asyncio.sleep(0.001)

    async def whole(request: web.Request) -> web.Response:
        await gone(request)
        return web.Response(text="late")

    async def stream(request: web.Request) -> web.StreamResponse:
        await gone(request)
        reply = web.StreamResponse()
        await reply.prepare(request)
        await reply.write(b"late")
        return reply

    async def socket(request: web.Request) -> web.WebSocketResponse:
        reply = web.WebSocketResponse()
        await reply.prepare(request)
        await gone(request)
        await reply.send_bytes(b"late")
        return reply

    app.router.add_get("/whole", whole)
    app.router.add_get("/stream", stream)
    app.router.add_get("/socket", socket)
    return app


UPGRADE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
BODY = "Content-Length: 100\r\n\r\nhalf"
BEARER = "Authorization: Bearer right\r\n"
REQUESTS = [
    (admission, f"POST /admit/hook HTTP/1.1\r\nHost: x\r\n{BODY}"),
    (clouds, f"POST /plain/v1/instances HTTP/1.1\r\nHost: x\r\n{BEARER}{BODY}"),
    (clouds, f"GET /plain/v1/instances/simulated-plain-1/exec HTTP/1.1\r\nHost: x\r\n{BEARER}{UPGRADE}\r\n"),
    (clouds, f"GET /plain/v1/instances/simulated-plain-1/dial?port=80 HTTP/1.1\r\nHost: x\r\n{BEARER}{UPGRADE}\r\n"),
    (slow, "GET /whole HTTP/1.1\r\nHost: x\r\n\r\n"),
    (slow, "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n"),
    (slow, f"GET /socket HTTP/1.1\r\nHost: x\r\n{UPGRADE}\r\n"),
]


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize(("server", "request_"), REQUESTS)
async def test_a_client_that_leaves_costs_one_line_and_no_traceback(server, request_, waits, caplog):
    caplog.set_level("INFO")
    async with listening(server()) as url:
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(request_.encode())
        await writer.drain()
        if waits:
            await (reader.readline() if UPGRADE in request_ else until_handled())
        writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()  # as the kernel does it for a process that is killed
        await until_idle()
    assert [record for record in caplog.records if record.exc_info] == []
    assert [record.message for record in caplog.records].count(LEFT) <= 1


async def until_handled() -> None:
    """Until a handler waits for what the client has yet to send or to take."""
    while not handlers():  # noqa: ASYNC110 (no event tells)
        await asyncio.sleep(0.005)
    await asyncio.sleep(0)


async def until_idle() -> None:
    while handlers():  # noqa: ASYNC110 (no event tells)
        await asyncio.sleep(0.005)


def handlers() -> list[asyncio.Task[object]]:
    return [task for task in asyncio.all_tasks() if "_handle_request" in repr(task)]


async def test_a_broken_connection_of_the_handlers_own_is_a_failure(caplog):
    async def broken(_: web.Request) -> web.Response:
        raise ConnectionRefusedError("the API server is down")

    app = web.Application(middlewares=[tolerate_disconnects])
    app.router.add_get("/", broken)
    async with listening(app) as url:
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b" 500 " in await reader.readline()
        writer.close()
    assert any(record.exc_info for record in caplog.records)
