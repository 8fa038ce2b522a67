"""Who asks model servers: every answer is read to its end, and one that is no prediction is no figure."""

from __future__ import annotations

import asyncio

import pytest

from bench import serving_load

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
REFUSED = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"


class Answering(asyncio.Protocol):
    def __init__(self, parts: list[bytes], asked: list[bytes]) -> None:
        self._parts = parts
        self._asked = asked

    def connection_made(self, transport):
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._asked.append(data)
        for part in self._parts:
            self._transport.write(part)


@pytest.mark.parametrize(
    ("parts", "fails"), [([WHOLE], False), ([WHOLE[:9], WHOLE[9:]], False), ([CHUNKED], False), ([REFUSED], True)]
)
async def test_answers_are_counted_as_what_they_are(parts, fails):
    asked: list[bytes] = []
    server = await asyncio.get_running_loop().create_server(lambda: Answering(parts, asked), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    load = await serving_load.ask(port, "/predict", b"{}", connections=3, seconds=0.05)
    server.close()
    assert load.requests == len(asked) >= 3
    assert load.failed == (load.requests if fails else 0)
    assert 0 < load.p50 <= load.p99
    assert asked[0].endswith(b"content-length: 2\r\n\r\n{}")
