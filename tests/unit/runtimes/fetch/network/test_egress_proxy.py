"""The proxy for libraries: what it carries, what it refuses, and the way on through a proxy of the cluster."""

from __future__ import annotations

import asyncio

from aiohttp import ClientSession

from skysail.runtimes.fetch.network.egress_proxy import EgressProxy
from skysail.runtimes.fetch.network.proxy_env import ProxyEnv
from skysail.runtimes.fetch.network.resolver import AddressGuard
from tests.support.model_sources import Files, serving


async def test_plain_requests_pass_to_what_is_open():
    files = Files()
    files.files["/a"] = b"x" * 300_000
    async with (
        serving(files) as url,
        EgressProxy(AddressGuard(("127.0.0.1",)), ProxyEnv({})) as egress_proxy,
        ClientSession() as session,
        session.get(f"{url}/a", proxy=egress_proxy.url) as answer,
    ):
        assert await answer.read() == files.files["/a"]

    assert egress_proxy.failure is None


async def test_what_is_closed_is_refused_and_said():
    files = Files()
    async with (
        serving(files) as url,
        EgressProxy(AddressGuard(()), ProxyEnv({})) as egress_proxy,
        ClientSession() as session,
    ):
        async with session.get(f"{url}/a", proxy=egress_proxy.url) as answer:
            assert answer.status == 403
        assert egress_proxy.failure is not None
        assert egress_proxy.failure.reason == "AddressForbidden"
        egress_proxy.forget()
        assert egress_proxy.failure is None

    assert files.requests == []


async def test_a_proxy_of_the_cluster_hears_the_request_as_it_came_and_its_password():
    heard = asyncio.get_running_loop().create_future()

    async def proxy(reader, writer):
        heard.set_result(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        writer.write(await reader.readexactly(4))
        writer.close()

    async def lookup(_host, _port):
        raise OSError("nobody here knows")

    server = await asyncio.start_server(proxy, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        ways = ProxyEnv({"https": f"http://me:pass%21@127.0.0.1:{port}"})
        async with EgressProxy(AddressGuard((), lookup), ways) as egress_proxy:
            host, _, gate_port = egress_proxy.url.removeprefix("http://").partition(":")
            reader, writer = await asyncio.open_connection(host, int(gate_port))
            writer.write(b"CONNECT models.example.com:443 HTTP/1.1\r\nHost: models.example.com:443\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"ping")
            assert await reader.read() == b"ping"
            writer.close()

    head = (await heard).decode().split("\r\n")
    assert head[0] == "CONNECT models.example.com:443 HTTP/1.1"
    assert "Proxy-Authorization: Basic bWU6cGFzcyE=" in head


async def test_what_is_no_request_is_hung_up_on():
    async with EgressProxy(AddressGuard(()), ProxyEnv({})) as egress_proxy:
        host, _, port = egress_proxy.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"\x16\x03\x01 hello\r\n\r\n")

        assert await reader.read() == b""
        writer.close()
