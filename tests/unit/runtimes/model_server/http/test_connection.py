"""What a connection takes in: how much, for how long, in which protocol, and what it says where it takes no more."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from skysail.runtimes.model_server.http.connection import _MOST_AHEAD
from skysail.runtimes.model_server.http.receive_limits import LONGEST_HEAD
from tests.unit.runtimes.model_server.http.test_app import House, double
from tests.unit.runtimes.model_server.http.test_fast_path import CHUNKED, ROW, Lane, Line, answered, connected, request

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


def opened(**named: Any) -> House:
    house = House(double, **named)
    house.open()
    return house


def told(line: Line) -> str:
    return b"".join(line.written).decode()


async def begun(line: Line) -> None:
    """Until something was written."""
    async with asyncio.timeout(60):
        while not line.written:  # noqa: ASYNC110 (a transport has no event for it)
            await asyncio.sleep(0)


def feed(lane: Lane, sent: bytes, size: int) -> None:
    for start in range(0, len(sent), size):
        lane.data_received(sent[start : start + size])


def chunked(*more: str) -> bytes:
    return CHUNKED.replace(b"\r\n", "".join(f"\r\n{line}" for line in (*more, "")).encode(), 1)


@pytest.mark.parametrize("size", [1, 50, 10_000])
@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_an_offer_of_another_protocol_is_declined_and_the_request_answered(size, offer, is_chunked):
    """Java's HttpClient makes one with each first request."""
    lane, line = connected(opened())
    asked = chunked(*offer) if is_chunked else request("/predict", *offer)
    feed(lane, asked * 2 + LIVE, size)
    said = await answered(lane, line, count=3)
    assert re.findall(r"\r\n\r\n(\{.*?\})", said) == [ANSWER, ANSWER, '{"live":true}']
    assert not line.closed


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("is_split", [False, True])
async def test_the_body_of_an_offer_is_never_taken_for_a_request(offer, is_split):
    lane, line = connected(opened())
    asked = request("/predict", *offer, body=LIVE)
    for part in (asked[: -len(LIVE)], LIVE) if is_split else (asked,):
        lane.data_received(part)
    said = await answered(lane, line)
    assert said.startswith("HTTP/1.1 400 ")
    assert said.count("HTTP/1.1") == 1


async def test_what_two_servers_could_read_differently_is_refused_with_an_offer_as_well():
    lane, line = connected(opened())
    lane.data_received(chunked(*OFFERS[0], "content-length: 4") + LIVE)
    assert told(line).startswith("HTTP/1.1 400 ")
    assert told(line).count("HTTP/1.1") == 1
    assert line.ended


async def test_connect_is_refused_and_what_comes_with_it_is_not_read():
    lane, line = connected(opened())
    lane.data_received(b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n" + LIVE)
    lane.data_received(LIVE)
    assert told(line).startswith("HTTP/1.1 405 ")
    assert told(line).count("HTTP/1.1") == 1


LONG = [
    b"POST /predict HTTP/1.1\r\nx: " + b"a" * 2 * LONGEST_HEAD + b"\r\n\r\n",
    b"POST /predict HTTP/1.1\r\n" + b"a: b\r\n" * LONGEST_HEAD,
    b"GET /" + b"a" * 2 * LONGEST_HEAD,
]


@pytest.mark.parametrize("size", [1000, 10**6])
@pytest.mark.parametrize("head", LONG)
async def test_a_head_that_is_too_long_is_refused(size, head):
    clock = Clock()
    lane, line = connected(opened(), clock)
    feed(lane, head, size)
    said = told(line)
    assert said.startswith("HTTP/1.1 431 ")
    assert '{"error":"The headers are longer than 65536 bytes: send fewer or shorter ones."}' in said
    assert (said.count("HTTP/1.1"), line.ended, line.closed) == (1, True, False)
    clock.pass_by(2.0)
    assert line.closed


@pytest.mark.parametrize("sent", [b"a: b\r\n" * LONGEST_HEAD, b"a: " + b"b" * 2 * LONGEST_HEAD])
async def test_neither_may_there_be_endless_lines_after_a_body(sent):
    lane, line = connected(opened())
    feed(lane, CHUNKED[:-2] + sent, 1000)
    assert told(line).startswith("HTTP/1.1 431 ")
    assert lane.scope["headers"] == [(b"transfer-encoding", b"chunked")]
    await asyncio.gather(*lane.server_state.tasks)


@pytest.mark.parametrize("size", [1000, 10**6])
async def test_a_long_head_is_read_and_a_long_body_is_none(size):
    lane, line = connected(opened(body_limit=10**6))
    asked = request("/predict", f"cookie: {'a' * (LONGEST_HEAD - 200)}", body=ROW + b" " * 200_000)
    feed(lane, asked, size)
    feed(lane, request("/predict?x", body=ROW + b" " * 200_000), size)
    assert (await answered(lane, line, count=2)).count(ANSWER) == 2


@pytest.mark.parametrize("asked", [request(), CHUNKED])
async def test_what_is_not_whole_is_counted_over_all_connections(asked):
    house = opened(receive_bytes=2 * len(asked) + 2 * 64 - 30)
    lane, line = connected(house)
    other, other_line = connected(house)
    lane.data_received(asked[:-12])
    other.data_received(asked[:-12])
    other.data_received(asked[-12:-9])
    said = told(other_line)
    assert said.startswith("HTTP/1.1 503 ")
    assert "\r\nretry-after: 1\r\n" in said
    assert "RECEIVE_BYTES" in said
    lane.data_received(asked[-12:])
    assert (await answered(lane, line)).endswith(ANSWER)
    assert house.app.arrivals.size == 0
    assert (sum(house.metrics.stats().requests), sum(house.metrics.stats().failed)) == (2, 1)
    await asyncio.gather(*other.server_state.tasks)
    assert (told(other_line), other_line.ended) == (said, True)


@pytest.mark.parametrize("asked", [request(), CHUNKED])
async def test_one_that_is_alone_may_be_larger_than_all_may_be(asked):
    house = opened(receive_bytes=1)
    lane, line = connected(house)
    feed(lane, asked, 7)
    assert (await answered(lane, line)).endswith(ANSWER)


@pytest.mark.parametrize("asked", [request()[:-1], request()[:20], CHUNKED[:-9]])
async def test_who_leaves_is_counted_no_more(asked):
    clock, house = Clock(), opened()
    lane, _ = connected(house, clock)
    lane.data_received(asked)
    assert house.app.arrivals.size >= len(asked)
    lane.connection_lost(None)
    assert (house.app.arrivals.size, clock.waits()) == (0, [])


async def test_what_is_read_only_to_be_thrown_away_is_not_counted():
    house = opened(body_limit=10, receive_bytes=10_000)
    lane, line = connected(house)
    other, _ = connected(house)
    other.data_received(request()[:-1])
    lane.data_received(request(body=b" " * 10**6)[:100])
    await begun(line)
    size = house.app.arrivals.size
    for _ in range(9):
        lane.data_received(b" " * 10_000)
    assert "HTTP/1.1 413" in told(line)
    assert (house.app.arrivals.size, line.closed) == (size, False)
    lane.connection_lost(None)


@pytest.mark.parametrize("asked", [b"P", request()[:20], request()[:-1], request("/predict?x")[:-1], CHUNKED[:-9]])
async def test_a_request_that_does_not_become_whole_is_answered(asked):
    clock, house = Clock(), opened()
    lane, line = connected(house, clock)
    lane.data_received(asked)
    clock.pass_by(60.0)
    await asyncio.gather(*lane.server_state.tasks)
    assert told(line).startswith("HTTP/1.1 408 ")
    assert "RECEIVE_SECONDS" in told(line)
    assert (line.ended, told(line).count("HTTP/1.1"), house.app.arrivals.size) == (True, 1, 0)
    clock.pass_by(2.0)
    assert line.closed


async def test_the_time_of_a_request_begins_with_its_first_byte_and_ends_with_its_last():
    clock = Clock()
    lane, line = connected(opened(), clock)
    assert clock.waits() == [5]
    for number in (1, 2):
        asked = request()
        lane.data_received(asked[:1])
        assert clock.waits() == [60.0]
        lane.data_received(asked[1:30])
        assert clock.waits() == [60.0]
        lane.data_received(asked[30:])
        assert clock.waits() == []
        await answered(lane, line, count=number)
    assert not line.closed


async def test_while_it_is_the_server_that_does_not_read_no_time_is_over():
    clock = Clock()
    lane, line = connected(opened(), clock)
    lane.data_received(request() + request("/predict?x")[:-1])
    assert line.paused
    clock.pass_by(60.0)
    assert clock.waits() == [60.0]
    lane.data_received(request()[-1:])
    assert (await answered(lane, line, count=2)).count(ANSWER) == 2


@pytest.mark.parametrize("noise", [b"", b"\r\n", b"\r\n\r\n"])
async def test_a_connection_on_which_nothing_is_asked_ends_some_time(noise):
    clock = Clock()
    lane, line = connected(opened(), clock)
    lane.data_received(noise)
    clock.pass_by(5)
    assert line.closed


async def test_a_request_that_began_before_the_last_answer_is_not_ended_as_idle():
    clock = Clock()
    lane, line = connected(opened(), clock)
    lane.data_received(request() + request()[:5])
    await begun(line)
    clock.pass_by(5)
    assert not line.closed
    lane.data_received(request()[5:])
    assert (await answered(lane, line, count=2)).count(ANSWER) == 2


@pytest.mark.parametrize(
    "wrong", [b"\0\r\n\r\n", b"CONNECT x:80 HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\na b: c\r\n\r\n"]
)
async def test_who_asked_before_something_wrong_is_answered_and_told_that_it_is_the_last(wrong):
    lane, line = connected(opened())
    lane.data_received(request() + LIVE + wrong + LIVE)
    said = await answered(lane, line, count=2)
    assert re.findall(r"HTTP/1.1 (\d+)", said) == ["200", "200"]
    assert said.count("connection: close") == 1
    assert said.index("connection: close") > said.index(ANSWER)
    assert line.closed


async def test_a_request_behind_others_is_refused_in_its_turn():
    lane, line = connected(opened())
    lane.data_received(request() + chunked()[:-9])
    lane.data_received(b"no chunk\r\n" + LIVE)
    said = await answered(lane, line, count=2)
    assert re.findall(r"HTTP/1.1 (\d+)", said) == ["200", "400"]
    assert line.closed


@pytest.mark.parametrize("asked", [request(), LIVE, request("/predict", *OFFERS[0])])
async def test_only_so_many_requests_are_read_ahead(asked):
    lane, line = connected(opened())
    lane.data_received(asked * 3 * _MOST_AHEAD)
    assert len(lane.pipeline) == _MOST_AHEAD
    said = await answered(lane, line, count=_MOST_AHEAD + 1)
    assert said.count("HTTP/1.1 200 OK") == _MOST_AHEAD + 1
    assert said.count("connection: close") == 1
    assert line.closed


async def test_what_cannot_be_read_is_said_in_a_sentence():
    lane, line = connected(opened())
    lane.data_received(b"POST /predict HTTP/1.1\r\ncontent-length: 5x\r\n\r\n")
    assert told(line).endswith('{"error":"The request is not valid HTTP: Invalid character in Content-Length."}')
    assert "\r\nconnection: close\r\n" in told(line)
