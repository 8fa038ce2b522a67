"""The bridge in front of a cloud that carries raw connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

import pytest

from skysail.base.metrics import Metrics
from skysail.bridge.listeners import Listeners
from skysail.bridge.proxies import Proxies
from skysail.bridge.raw_proxy import RawProxy
from skysail.bridge.routes import Route
from skysail.bridge.traffic import Traffic
from skysail.cloud.errors import Gone, OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from skysail.cloud.errors import ProviderError


class Connection:
    """To a server that sends back what it got, in reverse, when the input ends."""

    def __init__(self) -> None:
        self.received = b""
        self.has_ended = asyncio.Event()
        self.is_closed = False
        self.has_begun = asyncio.Event()
        self.error: ProviderError | None = None
        self._answered = False

    async def read(self) -> bytes:
        await self.has_ended.wait()
        if self.error:
            raise self.error
        if self._answered:
            return b""
        self._answered = True
        return self.received[::-1]

    async def write(self, data: bytes) -> None:
        self.received += data
        self.has_begun.set()

    async def write_eof(self) -> None:
        self.has_ended.set()

    async def close(self) -> None:
        self.is_closed = True


class Account:
    def __init__(self) -> None:
        self.dialled: list[tuple[str, int]] = []
        self.ranks: list[int] = []
        self.connections: list[Connection] = []
        self.errors: list[ProviderError] = []
        self.has_connected = asyncio.Event()

    async def dial(self, instance: str, port: int, *, rank: int = 0) -> Connection:
        self.dialled.append((instance, port))
        self.ranks.append(rank)
        if self.errors:
            raise self.errors.pop(0)
        self.connections.append(Connection())
        self.has_connected.set()
        return self.connections[-1]


def route(port: int, instance: str = "i-1", rank: int = 0) -> Route:
    return Route(
        port=port,
        target_port=7000,
        claim="c",
        provider="cloud",
        account="a",
        instance=instance,
        namespace="n",
        owner="db",
        rank=rank,
    )


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


class Harness:
    def __init__(self, **options: float) -> None:
        self.account = Account()
        self.metrics = Metrics()
        limit = int(options.get("limit", 10))
        traffic = self.traffic = Traffic(self.metrics, max_connections=100, max_connections_per_route=limit)
        proxy = RawProxy(self.account, traffic, idle_seconds=options.get("idle", 60.0))  # type: ignore[arg-type]
        self.listeners = Listeners("127.0.0.1", {"cloud": Proxies(raw=proxy)}, linger_seconds=0.0)
        self.port = free_port()

    async def ask(self, data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(data)
            writer.write_eof()
            return await reader.read()
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def harness(**options: float) -> AsyncIterator[Harness]:
    found = Harness(**options)
    await found.listeners.sync({found.port: route(found.port)})
    try:
        yield found
    finally:
        await found.listeners.close()


async def test_raw_proxy_bytes_and_ends_pass_both_ways():
    async with harness() as found:
        assert await found.ask(b"abc" * 100_000) == b"cba" * 100_000
        assert found.account.dialled == [("i-1", 7000)]
        page = found.metrics.render().decode()
        assert 'skysail_bridge_bytes_total{direction="in",namespace="n",owner="db",port="7000"} 300000.0' in page


async def test_raw_proxy_lost_dial_is_repeated_and_a_missing_instance_is_not():
    async with harness() as found:
        found.account.errors = [OutcomeUnknown("lost")]
        assert await found.ask(b"abc") == b"cba"
        found.account.errors = [Gone("gone")]
        with pytest.raises(ConnectionResetError):
            await found.ask(b"abc")
        assert len(found.account.dialled) == 3


async def test_raw_proxy_broken_connection_is_reset_and_not_ended():
    async with harness() as found:
        reader, writer = await asyncio.open_connection("127.0.0.1", found.port)
        writer.write(b"abc")
        await found.account.has_connected.wait()
        await found.account.connections[0].has_begun.wait()
        found.account.connections[0].error = OutcomeUnknown("lost")
        found.account.connections[0].has_ended.set()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        assert found.account.connections[0].is_closed


async def test_raw_proxy_connections_above_the_limit_are_reset():
    async with harness(limit=1) as found:
        _, first = await asyncio.open_connection("127.0.0.1", found.port)
        await found.account.has_connected.wait()
        with pytest.raises(ConnectionResetError):
            await found.ask(b"abc")
        first.close()


async def test_raw_proxy_silent_connection_is_reset_after_the_idle_time():
    async with harness(idle=0.01) as found:
        reader, writer = await asyncio.open_connection("127.0.0.1", found.port)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()


async def test_raw_proxy_dials_the_rank_of_the_route():
    async with harness() as found:
        await found.listeners.sync({found.port: route(found.port, rank=3)})
        assert await found.ask(b"abc") == b"cba"
        assert found.account.ranks == [3]


async def test_traffic_series_of_a_route_go_with_it():
    async with harness() as found:
        await found.ask(b"abc")
        series = 'skysail_bridge_connect_seconds_count{namespace="n",owner="db",port="7000"} 1.0'
        assert series in found.metrics.render().decode()
        found.traffic.keep({})
        page = found.metrics.render().decode()
        assert 'owner="db"' not in page


async def test_listeners_port_of_another_instance_never_meets_the_old_one():
    async with harness() as found:
        assert await found.ask(b"1") == b"1"
        await found.listeners.sync({found.port: route(found.port, "i-2")})
        assert await found.ask(b"2") == b"2"
        assert [instance for instance, _ in found.account.dialled] == ["i-1", "i-2"]
        await found.listeners.sync({})
        with pytest.raises(ConnectionRefusedError):
            await found.ask(b"3")


async def test_listeners_port_in_use_is_reported_and_opened_later():
    async with harness() as found:
        other = free_port()
        routes = {found.port: route(found.port), other: route(other)}
        with socket.create_server(("127.0.0.1", other)):
            await found.listeners.sync(routes)
            assert found.listeners.failed == {other}
        await found.listeners.sync(routes)
        assert found.listeners.failed == frozenset()
