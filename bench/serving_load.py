"""Asks a server for predictions, over and over, on as many connections as told. A process of its own, on its own core.

usage: python -m bench.serving_load PORT PATH BODY-FILE CONNECTIONS SECONDS
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from pathlib import Path

import msgspec
import uvloop

from bench import process

_END = b"\r\n\r\n"
_OK = b" 200 "


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Latencies in milliseconds."""

    requests: int
    failed: int
    seconds: float
    p50: float
    p99: float


class Asker(asyncio.Protocol):
    """One connection: the next request goes out when the answer to the last one is here."""

    def __init__(self, request: bytes, until: float, latencies: list[float], done: asyncio.Future[None]) -> None:
        self._request = request
        self._until = until
        self._latencies = latencies
        self._done = done
        self._answer = b""
        self.failed = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._answer = self._answer + data if self._answer else data
        if not _is_whole(self._answer):
            return
        now = time.perf_counter()
        self._latencies.append(now - self._asked)
        self.failed += _OK not in self._answer[:16]
        self._answer = b""
        if now < self._until:
            self._ask()
        else:
            self._transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        if not self._done.done():
            self._done.set_result(None)

    def _ask(self) -> None:
        self._asked = time.perf_counter()
        self._transport.write(self._request)


def _is_whole(answer: bytes) -> bool:
    end = answer.find(_END)
    if end < 0:
        return False
    head = answer[:end].lower()
    at = head.find(b"content-length:")
    if at < 0:
        return answer.endswith(b"0\r\n\r\n")
    length = int(head[at + 15 :].split(b"\r\n", 1)[0])
    return len(answer) >= end + len(_END) + length


async def ask(port: int, path: str, body: bytes, connections: int, seconds: float) -> Load:
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    request = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    latencies: list[float] = []
    ends = [loop.create_future() for _ in range(connections)]
    askers = [Asker(request, began + seconds, latencies, end) for end in ends]
    for asker in askers:
        await loop.create_connection(lambda asker=asker: asker, "127.0.0.1", port)
    await asyncio.gather(*ends)
    took = time.perf_counter() - began
    parts = statistics.quantiles(latencies, n=100) if len(latencies) > 1 else latencies * 99
    return Load(
        requests=len(latencies),
        failed=sum(asker.failed for asker in askers),
        seconds=took,
        p50=parts[49] * 1000,
        p99=parts[98] * 1000,
    )


def main() -> None:
    port, path, body, connections, seconds = sys.argv[1:]
    process.pin(process.CLIENT_CORE)
    load = uvloop.run(ask(int(port), path, Path(body).read_bytes(), int(connections), float(seconds)))
    sys.stdout.buffer.write(msgspec.json.encode(load))


if __name__ == "__main__":
    main()
