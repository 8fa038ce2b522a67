"""One hop of a run of `bench.bridge`: the server itself, or the bridge in front of it. A process of its own.

usage: python -m bench.bridge_hop (server PORT | tcp PORT SERVER-PORT | http PORT SERVER-PORT)
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import uvloop

from skysail.base.metrics import Metrics
from skysail.bridge.http_proxy import HttpProxy
from skysail.bridge.listeners import Listeners
from skysail.bridge.proxies import Proxies
from skysail.bridge.raw_proxy import RawProxy
from skysail.bridge.routes import Route
from skysail.bridge.traffic import Traffic
from skysail.cloud.http_address import HttpAddress
from skysail.local.provider.sessions import SocketConnection, connect_socket

_ANSWER = b"x" * 1024
_RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(_ANSWER), _ANSWER)
_IDLE_SECONDS = 60.0
_CONNECTIONS = 10_000


class _Server(asyncio.Protocol):
    """Answers each request that comes in one piece, as those of the load do."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        lengths = [int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:")]
        if end and len(body) >= sum(lengths):
            self._received = b""
            self._transport.write(_RESPONSE)  # type: ignore[attr-defined]


class _Account:
    """Leads to the server, without a cloud between."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def dial(self, instance: str, port: int, *, rank: int = 0) -> SocketConnection:  # noqa: ARG002 (the interface)
        return SocketConnection(await connect_socket("127.0.0.1", self._port))

    async def http_address(self, instance: str, port: int) -> HttpAddress:  # noqa: ARG002 (the interface)
        return HttpAddress(url=f"http://127.0.0.1:{self._port}")


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Server, "127.0.0.1", port)
    await server.serve_forever()


async def _forward(protocol: Any, port: int, server: int) -> None:
    account: Any = _Account(server)
    traffic = Traffic(Metrics(), max_connections=2 * _CONNECTIONS, max_connections_per_route=_CONNECTIONS)
    raw = RawProxy(account, traffic, idle_seconds=_IDLE_SECONDS)
    http = HttpProxy(account, traffic, idle_seconds=_IDLE_SECONDS, max_request_bytes=2**20)
    names: Any = {"claim": "c", "provider": "cloud", "account": "a", "instance": "i", "namespace": "n", "owner": "o"}
    route = Route(port=port, target_port=server, protocol=protocol, **names)
    await Listeners("127.0.0.1", {"cloud": Proxies(raw, http)}).sync({port: route})
    await asyncio.Event().wait()


def main() -> None:
    what, *ports = sys.argv[1:]
    numbers = [int(port) for port in ports]
    if what == "server":
        uvloop.run(_serve(numbers[0]))
    else:
        # As the bridge itself runs: with the event loop of asyncio.
        asyncio.run(_forward(what, numbers[0], numbers[1]))


if __name__ == "__main__":
    main()
