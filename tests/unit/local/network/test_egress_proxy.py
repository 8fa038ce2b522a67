from __future__ import annotations

import asyncio
import contextlib
import functools
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skysail.local.cluster import tcp_proxy
from skysail.local.network import egress_proxy, http_proxy
from skysail.local.network.egress_policy import EgressPolicy
from skysail.local.network.http_proxy import HttpProxy, ProxyError, ProxyRequest

LOOPBACK_TOO = EgressPolicy(
    is_host_address=lambda _: False, exceptions=(ip_network("127.0.0.1"), ip_network("127.0.0.9"))
)
STRICT = EgressPolicy(is_host_address=lambda _: False)


@pytest.mark.parametrize(
    ("head", "wanted"),
    [
        (b"CONNECT example.com:443 HTTP/1.1\r\nHost: x", ("example.com", 443, b"")),
        (b"CONNECT [2001:db8::1]:443 HTTP/1.1", ("2001:db8::1", 443, b"")),
        (b"GET http://Example.com HTTP/1.1", ("example.com", 80, b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")),
        (
            (
                b"POST http://example.com:80//a?b=c#d HTTP/1.1\r\nHost: example.com\r\nproxy-connection: keep-alive\r\n"
                b"Connection: keep-alive\r\nProxy-Authorization: Basic eA==\r\nContent-Length: 3"
            ),
            (
                "example.com",
                80,
                b"POST //a?b=c HTTP/1.1\r\nHost: example.com\r\nContent-Length: 3\r\nConnection: close\r\n\r\n",
            ),
        ),
    ],
)
def test_what_a_request_wants(head, wanted):
    proxy_request = http_proxy.parse(head + b"\r\n\r\n")
    assert (proxy_request.host, proxy_request.port, proxy_request.head) == wanted
    assert proxy_request.as_it_came == head + b"\r\n\r\n"


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"GET / HTTP/1.1",
        b"GET https://example.com/ HTTP/1.1",
        b"GET ftp://example.com/ HTTP/1.1",
        b"GET http:///path HTTP/1.1",
        b"GET http://example.com:99999/ HTTP/1.1",
        b"GET http://[::1/ HTTP/1.1",
        b"CONNECT example.com HTTP/1.1",
        b"CONNECT example.com:443/path HTTP/1.1",
        b"CONNECT :443 HTTP/1.1",
        b"one two",
        b"G\xc3\x89T http://example.com/ HTTP/1.1",
        b"\x16\x03\x01\x02\x00",
    ],
)
def test_what_is_no_request_for_a_proxy(head):
    with pytest.raises(ProxyError) as refused:
        http_proxy.parse(head + b"\r\n\r\n")
    assert refused.value.status == 400


@given(st.binary(max_size=200))
def test_any_bytes_are_a_wish_or_a_refusal(head):
    with contextlib.suppress(ProxyError):
        assert isinstance(http_proxy.parse(head + b"\r\n\r\n"), ProxyRequest)


@contextlib.asynccontextmanager
async def proxy(guard: EgressPolicy, names: dict[str, list[str]] | None = None):
    """A function that sends bytes to the outer part and gives what comes back until the end."""

    async def look_up(host: str, port: int) -> list[str]:
        if names is None:
            return await egress_proxy.look_up(host, port)
        if host not in names:
            raise OSError(-2, "Name or service not known")
        return names[host]

    listener = tcp_proxy.open_listener(0)
    where = listener.getsockname()
    made = HttpProxy(egress_proxy.host_side(guard, look_up))
    await made.serve(listener)

    yield functools.partial(send_to, where)
    await made.close()


async def send_to(where: tuple[str, int], *pieces: bytes) -> bytes:
    """What comes back, until the end."""
    reader, writer = await asyncio.open_connection(*where)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    writer.write_eof()
    said = await reader.read()
    writer.close()
    await writer.wait_closed()
    return said


@contextlib.asynccontextmanager
async def server():
    """Says back what it heard, like HTTP/1.0 with a body."""

    async def echo(reader, writer):
        heard = await reader.read()
        writer.write(b"heard: " + heard)
        await writer.drain()
        writer.close()

    served = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with served:
        yield served.sockets[0].getsockname()[1]


async def test_a_tunnel_carries_bytes_both_ways():
    async with server() as port, proxy(LOOPBACK_TOO) as send:
        said = await send(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode(), b"ahoy")
    assert said == b"HTTP/1.1 200 Connection established\r\n\r\nheard: ahoy"


async def test_a_plain_request_is_passed_on_as_the_server_expects_it():
    async with server() as port, proxy(LOOPBACK_TOO, {"example.com": ["127.0.0.1"]}) as send:
        said = await send(f"POST http://example.com:{port}/x HTTP/1.1\r\nHost: example.com\r\n\r\n".encode(), b"body")
    assert said == b"heard: POST /x HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\nbody"


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f.1", "0", "[::1]", "[::ffff:127.0.0.1]"]
)
@pytest.mark.parametrize("request_line", ["CONNECT {}:{} HTTP/1.1", "GET http://{}:{}/ HTTP/1.1"])
async def test_the_machines_own_servers_are_closed_to_pods_however_they_are_spelled(host, request_line):
    async with server() as port, proxy(STRICT) as send:
        said = await send(request_line.format(host, port).encode() + b"\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 403 Forbidden\r\n")
    assert said.endswith(b": it is this machine's loopback.\n")


async def test_a_name_with_one_closed_address_is_closed():
    async with proxy(STRICT, {"trick.example": ["8.8.8.8", "169.254.169.254"]}) as send:
        said = await send(b"GET http://trick.example/ HTTP/1.1\r\n\r\n")
    assert b"403 Forbidden" in said
    assert said.endswith(b"Pods may not connect to trick.example:80: clouds keep credentials there.\n")


async def test_a_name_that_nobody_knows_is_told():
    async with proxy(STRICT, {}) as send:
        said = await send(b"GET http://web/ HTTP/1.1\r\n\r\n")
    assert b"502 Bad Gateway" in said
    assert said.endswith(b"web cannot be resolved by the cluster or by this machine: Name or service not known.\n")


@contextlib.asynccontextmanager
async def inner_proxy(known: dict[tuple[str, str], list[str]], outer: tuple[str, int]):
    listener = tcp_proxy.open_listener(0)
    made = HttpProxy(egress_proxy.cluster_side(lambda host, caller: known.get((host, caller), []), outer))
    await made.serve(listener)
    yield functools.partial(send_to, listener.getsockname())
    await made.close()


async def test_the_inner_part_connects_with_the_cluster_and_passes_on_the_rest():
    known = {("web", "127.0.0.1"): ["127.0.0.1"], ("web", "127.0.0.2"): []}
    async with server() as inside, server() as outside:
        passed_on = f"CONNECT example.com:{inside} HTTP/1.1\r\nA: b\r\n\r\n".encode()
        async with inner_proxy(known, ("127.0.0.1", outside)) as send:
            tunnel = await send(f"CONNECT web:{inside} HTTP/1.1\r\n\r\n".encode(), b"ahoy")
            plain = await send(f"GET http://web:{inside}/x HTTP/1.1\r\n\r\n".encode())
            other = await send(passed_on, b"ahoy")
    assert tunnel == b"HTTP/1.1 200 Connection established\r\n\r\nheard: ahoy"
    assert plain == b"heard: GET /x HTTP/1.1\r\nConnection: close\r\n\r\n"
    assert other == b"heard: " + passed_on + b"ahoy"


async def test_without_a_way_out_the_inner_part_says_so():
    async with inner_proxy({}, ("127.0.0.1", 1)) as send:
        said = await send(b"CONNECT example.com:443 HTTP/1.1\r\n\r\n")
    assert said.endswith(b"example.com:443 is not in the cluster, and this cluster has no egress proxy.\n")


async def test_the_next_address_is_tried_and_nobody_at_all_is_told():
    async with server() as port, proxy(LOOPBACK_TOO, {"two": ["127.0.0.9", "127.0.0.1"], "none": []}) as send:
        said = await send(f"CONNECT two:{port} HTTP/1.1\r\n\r\n".encode(), b"ahoy")
        nobody = await send(b"CONNECT two:1 HTTP/1.1\r\n\r\n")
        empty = await send(b"CONNECT none:1 HTTP/1.1\r\n\r\n")
    assert said.endswith(b"heard: ahoy")
    assert b"502 Bad Gateway" in nobody
    assert b"two:1 cannot be reached: " in nobody
    assert empty.endswith(b"none:1 cannot be reached: it has no address.\n")


# No byte more than it takes to be too long: what nobody has read breaks a connection off, with the answer on it.
TOO_LONG = b"x" * (http_proxy._MAX_HEAD_BYTES + len(b"\r\n\r\n"))


@pytest.mark.parametrize(
    "sent", [b"", b"GET", b"nonsense\r\n\r\n", TOO_LONG], ids=["nothing", "word", "nonsense", "too long"]
)
async def test_what_is_no_http_is_told_so(sent):
    async with proxy(STRICT) as send:
        assert (await send(sent)).startswith(b"HTTP/1.1 400 Bad Request\r\n")


def test_what_is_no_pod_sends_everything_through_the_proxy():
    assert set(egress_proxy.proxy_env()) == {"http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"}
    assert egress_proxy.proxy_env().items() < egress_proxy.environment().items()


def test_pods_are_told_to_leave_the_proxy_alone_for_the_cluster():
    told = egress_proxy.environment()
    assert told["HTTPS_PROXY"] == told["http_proxy"] == "http://10.244.0.1:3128"
    assert told["NO_PROXY"] == told["no_proxy"]
    assert {"10.244.0.0/16", "10.96.0.0/16", ".svc", ".cluster.local"} < set(told["no_proxy"].split(","))
