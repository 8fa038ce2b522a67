"""Requests by the byte: which of them go the short way, and that none can tell which way it went."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import uvicorn
from uvicorn.server import ServerState

from skysail.runtimes.model_server.http.fast_path import FastPathConnection
from skysail.runtimes.model_server.lifecycle import Phase
from tests.support.model_server import ModelServer, serving
from tests.support.onnx_models import WIDTH, Network
from tests.unit.runtimes.model_server.http.test_app import Harness, double, fail

if TYPE_CHECKING:
    from collections.abc import Iterator

NETWORK = Network(seed=3)
ROW = b'{"features": [[1, 2]]}'


class FakeTransport(asyncio.Transport):
    """A connection without a socket."""

    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.9", 1), "sockname": ("10.0.0.1", 8000)})
        self.written: list[bytes] = []
        self.closed = self.ended = self.paused = False

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def write_eof(self) -> None:
        self.ended = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


def connected(harness: Harness, loop: Any = None) -> tuple[FastPathConnection, FakeTransport]:
    config = uvicorn.Config(harness.app, lifespan="off", ws="none", log_config=None)
    config.load()
    fast_path_connection, fake_transport = (
        FastPathConnection(config=config, server_state=ServerState(), app_state={}, _loop=loop),
        FakeTransport(),
    )
    fast_path_connection.connection_made(fake_transport)
    return fast_path_connection, fake_transport


async def answered(fast_path_connection: FastPathConnection, fake_transport: FakeTransport, count: int = 1) -> str:
    """What was written once as many answers were."""
    async with asyncio.timeout(60):
        # Nothing else tells it: a transport has no event for what was written to it.
        while (  # noqa: ASYNC110
            b"".join(fake_transport.written).count(b"\r\ncontent-length: ") < count
            or fast_path_connection.server_state.tasks
        ):
            await asyncio.sleep(0)
    fast_path_connection._unset_keepalive_if_required()
    return b"".join(fake_transport.written).decode()


def request(path: str = "/predict", *more: str, method: str = "POST", version: str = "1.1", body: bytes = ROW) -> bytes:
    lines = [f"{method} {path} HTTP/{version}", "host: x", *more, f"content-length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


CHUNKED = b"POST /predict HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(ROW), ROW)


@pytest.mark.parametrize(
    ("asked", "is_short"),
    [
        (request(), True),
        (request("/predict", "content-type: application/json", "X-Request-Id: 7", "cookie: a=b"), True),
        (request("/predict", "Connection: keep-alive"), True),
        (request("/predict?debug=1"), False),
        (request("/%70redict"), False),
        (request("/predict", "connection: close"), False),
        (request("/predict", "expect: 100-continue"), False),
        (request(version="1.0"), False),
        (CHUNKED, False),
    ],
)
async def test_a_plain_request_needs_no_task_and_every_other_is_answered_alike(asked, is_short):
    harness = Harness(double)
    harness.open()
    fast_path_connection, fake_transport = connected(harness)
    fast_path_connection.data_received(asked)
    assert (not fast_path_connection.server_state.tasks) is is_short
    told = await answered(fast_path_connection, fake_transport)
    assert told.endswith('{"predictions":[[2.0,4.0]]}')
    assert (len(fake_transport.written) == 1) is is_short
    assert fake_transport.closed == (b"close" in asked or b"HTTP/1.0" in asked)
    names = re.findall(r"^([a-z-]+): ", told, re.MULTILINE)
    assert set(names) - {"connection"} == {"content-type", "content-length"}


@pytest.mark.parametrize(
    ("version", "sent", "is_short"),
    [
        ("v1.0+cu12", "v1.0+cu12", True),
        ("2024/01", "2024/01", True),
        ("2024/01", "2024%2F01", False),
        ("v 2", "v%202", True),
        ("50%25", "50%2525", True),
        ("50%25", "50%25", None),
    ],
)
async def test_a_version_in_a_path_is_read_as_it_is_meant(version, sent, is_short):
    """`50%25` means `50%`."""
    harness = Harness(double, version=version)
    harness.open()
    fast_path_connection, fake_transport = connected(harness)
    row = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.0, 2.0]}
    fast_path_connection.data_received(
        request(f"/v2/models/net/versions/{sent}/infer", body=json.dumps({"inputs": [row]}).encode())
    )
    assert (not fast_path_connection.server_state.tasks) is bool(is_short)
    if is_short is None:
        fast_path_connection.shutdown()
    else:
        assert '"data":[2.0,4.0]' in await answered(fast_path_connection, fake_transport)


@pytest.mark.parametrize("size", [1, 7, 60, 1000])
async def test_a_request_may_come_in_pieces(size):
    harness = Harness(double)
    harness.open()
    fast_path_connection, fake_transport = connected(harness)
    asked = request()
    for start in range(0, len(asked), size):
        fast_path_connection.data_received(asked[start : start + size])
    assert (await answered(fast_path_connection, fake_transport)).endswith('{"predictions":[[2.0,4.0]]}')


@pytest.mark.parametrize("size", [1, 50, 10_000])
async def test_requests_that_come_together_are_answered_in_their_order(size):
    harness = Harness(double)
    harness.open()
    fast_path_connection, fake_transport = connected(harness)
    bodies = [b'{"features": [[%d, 0]]}' % number for number in range(4)]
    asked = [
        request(body=bodies[0]),
        request("/predict?x", body=bodies[1]),
        *(request(body=body) for body in bodies[2:]),
    ]
    whole = b"".join(asked)
    for start in range(0, len(whole), size):
        fast_path_connection.data_received(whole[start : start + size])
    told = await answered(fast_path_connection, fake_transport, count=4)
    assert re.findall(r"\[\[(\d)", told) == ["0", "2", "4", "6"]


async def test_an_error_is_answered_and_the_connection_goes_on():
    harness = Harness(fail, worked=True)
    harness.open()
    fast_path_connection, fake_transport = connected(harness)
    fast_path_connection.data_received(request(body=b"{"))
    assert "HTTP/1.1 400 Bad Request\r\n" in await answered(fast_path_connection, fake_transport)
    fast_path_connection.data_received(request())
    assert "HTTP/1.1 500 Internal Server Error\r\n" in await answered(fast_path_connection, fake_transport, count=2)
    assert sum(harness.metrics.stats().failed) == 2


async def test_an_output_that_json_has_no_word_for_is_an_error_of_the_model_s_alone():
    harness = Harness(lambda arrays: [arrays[0] * 2 if arrays[0][0, 0] else arrays[0].astype(np.complex64)])
    harness.open()
    fast_path_connection, fake_transport = connected(harness)
    other, other_line = connected(harness)
    fast_path_connection.data_received(request(body=b'{"features": [[0, 2]]}'))
    assert "HTTP/1.1 400" in await answered(fast_path_connection, fake_transport)
    other.data_received(request())
    assert (await answered(other, other_line)).endswith('{"predictions":[[2.0,4.0]]}')


async def test_a_body_that_is_too_long_goes_the_way_that_reads_it_on():
    harness = Harness(double, body_limit=10)
    harness.open()
    fast_path_connection, fake_transport = connected(harness)
    fast_path_connection.data_received(request())
    assert "HTTP/1.1 413" in await answered(fast_path_connection, fake_transport)
    assert fake_transport.closed


async def test_who_does_not_read_is_not_answered_without_end():
    harness = Harness(double)
    harness.open()
    fast_path_connection, fake_transport = connected(harness)
    fast_path_connection.pause_writing()
    fast_path_connection.data_received(request())
    assert fast_path_connection.server_state.tasks
    fast_path_connection.resume_writing()
    assert (await answered(fast_path_connection, fake_transport)).endswith('{"predictions":[[2.0,4.0]]}')


async def test_who_has_left_is_not_answered():
    harness = Harness(double)
    harness.open()
    fast_path_connection, fake_transport = connected(harness)
    fast_path_connection.data_received(request())
    fast_path_connection.connection_lost(None)
    again, its_line = connected(harness)
    again.data_received(request())
    await answered(again, its_line)
    assert (fake_transport.written, fake_transport.closed) == ([], True)


@pytest.mark.parametrize("why", ["draining", "stopping"])
async def test_at_the_end_who_is_answered_is_sent_elsewhere(why):
    harness = Harness(double)
    harness.open()
    fast_path_connection, fake_transport = connected(harness)
    fast_path_connection.data_received(request()[:-5])
    if why == "draining":
        harness.life.phase = Phase.DRAINING
    else:
        fast_path_connection.shutdown()
    assert not fake_transport.closed
    fast_path_connection.data_received(request()[-5:])
    told = await answered(fast_path_connection, fake_transport)
    assert "\r\nconnection: close\r\n" in told
    assert told.endswith('{"predictions":[[2.0,4.0]]}')
    assert fake_transport.closed


async def test_a_connection_that_is_idle_ends_with_the_server():
    harness = Harness(double)
    harness.open()
    fast_path_connection, fake_transport = connected(harness)
    fast_path_connection.data_received(request())
    await answered(fast_path_connection, fake_transport)
    fast_path_connection.shutdown()
    assert fake_transport.closed


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    with serving(NETWORK.save(tmp_path_factory.mktemp("model") / "model.onnx")) as started:
        yield started


def exchange(server: ModelServer, sent: bytes) -> str:
    """All that comes back until the server ends the connection."""
    with socket.create_connection(("127.0.0.1", server.port), 60) as line:
        line.sendall(sent)
        parts = []
        while part := line.recv(65536):
            parts.append(part)
    return b"".join(parts).decode()


@pytest.mark.parametrize(
    "lines",
    [
        ["content-length: 5", "content-length: 6"],
        ["content-length: 5", "transfer-encoding: chunked"],
        ["content-length: -1"],
        ["content-length: 5x"],
        ["content-length: 99999999999999999999999"],
        ["transfer-encoding: chunked, identity"],
        ["a b: c", "content-length: 0"],
    ],
)
def test_what_two_servers_could_read_differently_is_refused(server, lines):
    head = "\r\n".join(["POST /predict HTTP/1.1", "host: x", *lines, "", ""]).encode()
    told = exchange(server, head + b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert told.startswith("HTTP/1.1 400 ")
    assert told.count("HTTP/1.1") == 1


def test_a_hundred_requests_at_once_on_one_line_are_answered_in_their_order(server):
    rows = np.random.default_rng(1).normal(size=(100, WIDTH)).astype(np.float32)
    asked = [request(body=json.dumps({"features": [row.tolist()]}).encode()) for row in rows]
    told = exchange(server, b"".join(asked) + request("/v2/health/live", "connection: close", method="GET", body=b""))
    found = [json.loads(body)["predictions"][0] for body in re.findall(r'\{"predictions".*?\}', told)]
    np.testing.assert_allclose(found, NETWORK.predict(rows), rtol=1e-3, atol=1e-4)
    assert told.endswith('{"live":true}')
