"""What a connection takes in: how much, for how long, in which protocol, and what it says where it takes no more."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from skysail.runtimes.model_server.http.connection import _MAX_PIPELINED
from skysail.runtimes.model_server.http.receive_limits import MAX_HEAD_BYTES
from tests.unit.runtimes.model_server.http.test_app import Harness, double
from tests.unit.runtimes.model_server.http.test_fast_path import (
    CHUNKED,
    ROW,
    FakeTransport,
    FastPathConnection,
    answered,
    connected,
    request,
)

ANSWER = '{"predictions":[[2.0,4.0]]}'
LIVE = b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n"
OFFERS = [
    ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"],
    ["connection: upgrade", "upgrade: websocket", "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="],
]


class Clock:
    """A loop whose timers go off when they are told to."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Any, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio.get_running_loop(), name)

    def call_later(self, seconds: float, call: Any, *arguments: Any) -> Any:
        timer = asyncio.get_running_loop().call_later(10_000, call, *arguments)
        self.timers.append((seconds, call, timer))
        return timer

    def waits(self) -> list[float]:
        return [seconds for seconds, _, timer in self.timers if not timer.cancelled()]

    def pass_by(self, seconds: float) -> None:
        due = [entry for entry in self.timers if entry[0] == seconds and not entry[2].cancelled()]
        self.timers = [entry for entry in self.timers if entry not in due]
        for _, call, timer in due:
            timer.cancel()
            call()


def opened(**named: Any) -> Harness:
    harness = Harness(double, **named)
    harness.open()
    return harness


def told(fake_transport: FakeTransport) -> str:
    return b"".join(fake_transport.written).decode()


async def begun(fake_transport: FakeTransport) -> None:
    """Until something was written."""
    async with asyncio.timeout(60):
        while not fake_transport.written:  # noqa: ASYNC110 (a transport has no event for it)
            await asyncio.sleep(0)


def feed(fast_path_connection: FastPathConnection, sent: bytes, size: int) -> None:
    for start in range(0, len(sent), size):
        fast_path_connection.data_received(sent[start : start + size])


def chunked(*more: str) -> bytes:
    return CHUNKED.replace(b"\r\n", "".join(f"\r\n{line}" for line in (*more, "")).encode(), 1)


@pytest.mark.parametrize("size", [1, 50, 10_000])
@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_an_offer_of_another_protocol_is_declined_and_the_request_answered(size, offer, is_chunked):
    """Java's HttpClient makes one with each first request."""
    fast_path_connection, fake_transport = connected(opened())
    asked = chunked(*offer) if is_chunked else request("/predict", *offer)
    feed(fast_path_connection, asked * 2 + LIVE, size)
    said = await answered(fast_path_connection, fake_transport, count=3)
    assert re.findall(r"\r\n\r\n(\{.*?\})", said) == [ANSWER, ANSWER, '{"live":true}']
    assert not fake_transport.closed


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("is_split", [False, True])
async def test_the_body_of_an_offer_is_never_taken_for_a_request(offer, is_split):
    fast_path_connection, fake_transport = connected(opened())
    asked = request("/predict", *offer, body=LIVE)
    for part in (asked[: -len(LIVE)], LIVE) if is_split else (asked,):
        fast_path_connection.data_received(part)
    said = await answered(fast_path_connection, fake_transport)
    assert said.startswith("HTTP/1.1 400 ")
    assert said.count("HTTP/1.1") == 1


async def test_what_two_servers_could_read_differently_is_refused_with_an_offer_as_well():
    fast_path_connection, fake_transport = connected(opened())
    fast_path_connection.data_received(chunked(*OFFERS[0], "content-length: 4") + LIVE)
    assert told(fake_transport).startswith("HTTP/1.1 400 ")
    assert told(fake_transport).count("HTTP/1.1") == 1
    assert fake_transport.ended


async def test_connect_is_refused_and_what_comes_with_it_is_not_read():
    fast_path_connection, fake_transport = connected(opened())
    fast_path_connection.data_received(b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n" + LIVE)
    fast_path_connection.data_received(LIVE)
    assert told(fake_transport).startswith("HTTP/1.1 405 ")
    assert told(fake_transport).count("HTTP/1.1") == 1


LONG = [
    b"POST /predict HTTP/1.1\r\nx: " + b"a" * 2 * MAX_HEAD_BYTES + b"\r\n\r\n",
    b"POST /predict HTTP/1.1\r\n" + b"a: b\r\n" * MAX_HEAD_BYTES,
    b"GET /" + b"a" * 2 * MAX_HEAD_BYTES,
]


@pytest.mark.parametrize("size", [1000, 10**6])
@pytest.mark.parametrize("head", LONG)
async def test_a_head_that_is_too_long_is_refused(size, head):
    clock = Clock()
    fast_path_connection, fake_transport = connected(opened(), clock)
    feed(fast_path_connection, head, size)
    said = told(fake_transport)
    assert said.startswith("HTTP/1.1 431 ")
    assert '{"error":"The headers are longer than 65536 bytes: send fewer or shorter ones."}' in said
    assert (said.count("HTTP/1.1"), fake_transport.ended, fake_transport.closed) == (1, True, False)
    clock.pass_by(2.0)
    assert fake_transport.closed


@pytest.mark.parametrize("sent", [b"a: b\r\n" * MAX_HEAD_BYTES, b"a: " + b"b" * 2 * MAX_HEAD_BYTES])
async def test_neither_may_there_be_endless_lines_after_a_body(sent):
    fast_path_connection, fake_transport = connected(opened())
    feed(fast_path_connection, CHUNKED[:-2] + sent, 1000)
    assert told(fake_transport).startswith("HTTP/1.1 431 ")
    assert fast_path_connection.scope["headers"] == [(b"transfer-encoding", b"chunked")]
    await asyncio.gather(*fast_path_connection.server_state.tasks)


@pytest.mark.parametrize("size", [1000, 10**6])
async def test_a_long_head_is_read_and_a_long_body_is_none(size):
    fast_path_connection, fake_transport = connected(opened(body_limit=10**6))
    asked = request("/predict", f"cookie: {'a' * (MAX_HEAD_BYTES - 200)}", body=ROW + b" " * 200_000)
    feed(fast_path_connection, asked, size)
    feed(fast_path_connection, request("/predict?x", body=ROW + b" " * 200_000), size)
    assert (await answered(fast_path_connection, fake_transport, count=2)).count(ANSWER) == 2


@pytest.mark.parametrize("asked", [request(), CHUNKED])
async def test_what_is_not_whole_is_counted_over_all_connections(asked):
    harness = opened(receive_bytes=2 * len(asked) + 2 * 64 - 30)
    fast_path_connection, fake_transport = connected(harness)
    other, other_line = connected(harness)
    fast_path_connection.data_received(asked[:-12])
    other.data_received(asked[:-12])
    other.data_received(asked[-12:-9])
    said = told(other_line)
    assert said.startswith("HTTP/1.1 503 ")
    assert "\r\nretry-after: 1\r\n" in said
    assert "RECEIVE_BYTES" in said
    fast_path_connection.data_received(asked[-12:])
    assert (await answered(fast_path_connection, fake_transport)).endswith(ANSWER)
    assert harness.app.receive_budget.size == 0
    assert (sum(harness.metrics.stats().requests), sum(harness.metrics.stats().failed)) == (2, 1)
    await asyncio.gather(*other.server_state.tasks)
    assert (told(other_line), other_line.ended) == (said, True)


@pytest.mark.parametrize("asked", [request(), CHUNKED])
async def test_one_that_is_alone_may_be_larger_than_all_may_be(asked):
    harness = opened(receive_bytes=1)
    fast_path_connection, fake_transport = connected(harness)
    feed(fast_path_connection, asked, 7)
    assert (await answered(fast_path_connection, fake_transport)).endswith(ANSWER)


@pytest.mark.parametrize("asked", [request()[:-1], request()[:20], CHUNKED[:-9]])
async def test_who_leaves_is_counted_no_more(asked):
    clock, harness = Clock(), opened()
    fast_path_connection, _ = connected(harness, clock)
    fast_path_connection.data_received(asked)
    assert harness.app.receive_budget.size >= len(asked)
    fast_path_connection.connection_lost(None)
    assert (harness.app.receive_budget.size, clock.waits()) == (0, [])


async def test_what_is_read_only_to_be_thrown_away_is_not_counted():
    harness = opened(body_limit=10, receive_bytes=10_000)
    fast_path_connection, fake_transport = connected(harness)
    other, _ = connected(harness)
    other.data_received(request()[:-1])
    fast_path_connection.data_received(request(body=b" " * 10**6)[:100])
    await begun(fake_transport)
    size = harness.app.receive_budget.size
    for _ in range(9):
        fast_path_connection.data_received(b" " * 10_000)
    assert "HTTP/1.1 413" in told(fake_transport)
    assert (harness.app.receive_budget.size, fake_transport.closed) == (size, False)
    fast_path_connection.connection_lost(None)


@pytest.mark.parametrize("asked", [b"P", request()[:20], request()[:-1], request("/predict?x")[:-1], CHUNKED[:-9]])
async def test_a_request_that_does_not_become_whole_is_answered(asked):
    clock, harness = Clock(), opened()
    fast_path_connection, fake_transport = connected(harness, clock)
    fast_path_connection.data_received(asked)
    clock.pass_by(60.0)
    await asyncio.gather(*fast_path_connection.server_state.tasks)
    assert told(fake_transport).startswith("HTTP/1.1 408 ")
    assert "RECEIVE_SECONDS" in told(fake_transport)
    assert (fake_transport.ended, told(fake_transport).count("HTTP/1.1"), harness.app.receive_budget.size) == (
        True,
        1,
        0,
    )
    clock.pass_by(2.0)
    assert fake_transport.closed


async def test_the_time_of_a_request_begins_with_its_first_byte_and_ends_with_its_last():
    clock = Clock()
    fast_path_connection, fake_transport = connected(opened(), clock)
    assert clock.waits() == [5]
    for number in (1, 2):
        asked = request()
        fast_path_connection.data_received(asked[:1])
        assert clock.waits() == [60.0]
        fast_path_connection.data_received(asked[1:30])
        assert clock.waits() == [60.0]
        fast_path_connection.data_received(asked[30:])
        assert clock.waits() == []
        await answered(fast_path_connection, fake_transport, count=number)
    assert not fake_transport.closed


async def test_while_it_is_the_server_that_does_not_read_no_time_is_over():
    clock = Clock()
    fast_path_connection, fake_transport = connected(opened(), clock)
    fast_path_connection.data_received(request() + request("/predict?x")[:-1])
    assert fake_transport.paused
    clock.pass_by(60.0)
    assert clock.waits() == [60.0]
    fast_path_connection.data_received(request()[-1:])
    assert (await answered(fast_path_connection, fake_transport, count=2)).count(ANSWER) == 2


@pytest.mark.parametrize("noise", [b"", b"\r\n", b"\r\n\r\n"])
async def test_a_connection_on_which_nothing_is_asked_ends_some_time(noise):
    clock = Clock()
    fast_path_connection, fake_transport = connected(opened(), clock)
    fast_path_connection.data_received(noise)
    clock.pass_by(5)
    assert fake_transport.closed


async def test_a_request_that_began_before_the_last_answer_is_not_ended_as_idle():
    clock = Clock()
    fast_path_connection, fake_transport = connected(opened(), clock)
    fast_path_connection.data_received(request() + request()[:5])
    await begun(fake_transport)
    clock.pass_by(5)
    assert not fake_transport.closed
    fast_path_connection.data_received(request()[5:])
    assert (await answered(fast_path_connection, fake_transport, count=2)).count(ANSWER) == 2


@pytest.mark.parametrize(
    "wrong", [b"\0\r\n\r\n", b"CONNECT x:80 HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\na b: c\r\n\r\n"]
)
async def test_who_asked_before_something_wrong_is_answered_and_told_that_it_is_the_last(wrong):
    fast_path_connection, fake_transport = connected(opened())
    fast_path_connection.data_received(request() + LIVE + wrong + LIVE)
    said = await answered(fast_path_connection, fake_transport, count=2)
    assert re.findall(r"HTTP/1.1 (\d+)", said) == ["200", "200"]
    assert said.count("connection: close") == 1
    assert said.index("connection: close") > said.index(ANSWER)
    assert fake_transport.closed


async def test_a_request_behind_others_is_refused_in_its_turn():
    fast_path_connection, fake_transport = connected(opened())
    fast_path_connection.data_received(request() + chunked()[:-9])
    fast_path_connection.data_received(b"no chunk\r\n" + LIVE)
    said = await answered(fast_path_connection, fake_transport, count=2)
    assert re.findall(r"HTTP/1.1 (\d+)", said) == ["200", "400"]
    assert fake_transport.closed


@pytest.mark.parametrize("asked", [request(), LIVE, request("/predict", *OFFERS[0])])
async def test_only_so_many_requests_are_read_ahead(asked):
    fast_path_connection, fake_transport = connected(opened())
    fast_path_connection.data_received(asked * 3 * _MAX_PIPELINED)
    assert len(fast_path_connection.pipeline) == _MAX_PIPELINED
    said = await answered(fast_path_connection, fake_transport, count=_MAX_PIPELINED + 1)
    assert said.count("HTTP/1.1 200 OK") == _MAX_PIPELINED + 1
    assert said.count("connection: close") == 1
    assert fake_transport.closed


async def test_what_cannot_be_read_is_said_in_a_sentence():
    fast_path_connection, fake_transport = connected(opened())
    fast_path_connection.data_received(b"POST /predict HTTP/1.1\r\ncontent-length: 5x\r\n\r\n")
    assert told(fake_transport).endswith(
        '{"error":"The request is not valid HTTP: Invalid character in Content-Length."}'
    )
    assert "\r\nconnection: close\r\n" in told(fake_transport)
