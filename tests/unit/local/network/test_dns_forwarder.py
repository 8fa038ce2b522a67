from __future__ import annotations

import asyncio
import contextlib

import pytest

from skysail.local.cluster import tcp_proxy
from skysail.local.network import dns_forwarder, dns_wire
from skysail.local.network.dns_forwarder import ForwarderClient, ForwarderServer, HostResolver
from skysail.local.network.dns_wire import Code
from tests.unit.local.network.wire import decode, query


class NameServer(asyncio.DatagramProtocol):
    """Knows every name, with as many addresses as its first letters say; over UDP it sends a stray answer first."""

    def connection_made(self, transport) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.transport.sendto(b"\xff\xff" + data[2:], addr)
        self.transport.sendto(dns_wire.truncate(answer(data), dns_wire.read(data)), addr)


def answer(message: bytes) -> bytes:
    question = dns_wire.read(message)
    count = int(question.name.split("-")[0])
    return dns_wire.answer(
        question, Code.OK, [dns_wire.address(question.name, f"203.0.113.{last}") for last in range(count)]
    )


@contextlib.asynccontextmanager
async def name_server():
    async def converse(reader, writer):
        writer.write(dns_wire.tcp_frame(answer(await dns_wire.receive(reader))))
        writer.close()

    server = await asyncio.start_server(converse, "127.0.0.1", 0)
    where = server.sockets[0].getsockname()
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(NameServer, local_addr=where)
    async with server:
        yield where
    transport.close()


@contextlib.asynccontextmanager
async def exchange(servers):
    """The inner part, joined with the outer one."""
    listener = tcp_proxy.open_listener(0)
    where = listener.getsockname()
    outer = ForwarderServer(HostResolver(servers))
    await outer.serve(listener)
    yield ForwarderClient(*where)
    await outer.close()


# A port that nobody is given who asks for any.
NOBODY = ("127.0.0.1", 1)


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """A machine may be busy with other things for longer than a resolver in a pod remembers its question."""
    for name in ("_SECONDS", "_ALL_SECONDS"):
        monkeypatch.setattr(dns_forwarder, name, 600.0)


async def test_a_question_goes_out_and_its_answer_comes_back():
    async with name_server() as server, exchange([server]) as forwarder:
        found = decode(await forwarder.ask(query("2-example.com", id_=99)))
    assert (found.id, [record[2] for record in found.records]) == (99, ["203.0.113.0", "203.0.113.1"])


async def test_a_long_answer_comes_whole():
    async with name_server() as server, exchange([server]) as forwarder:
        found = decode(await forwarder.ask(query("100-example.com")))
    assert (found.is_truncated, len(found.records)) == (False, 100)


async def test_the_next_server_is_asked_where_the_first_is_not_there():
    async with name_server() as server, exchange([NOBODY, server]) as forwarder:
        assert decode(await forwarder.ask(query("1-example.com"))).code == Code.OK


async def test_where_nobody_answers_there_is_no_answer():
    async with exchange([NOBODY]) as forwarder:
        assert await forwarder.ask(query("1-example.com")) is None
    assert await ForwarderClient(*NOBODY).ask(query("1-example.com")) is None


async def test_only_questions_pass():
    async with name_server() as server, exchange([server]) as forwarder:
        assert await forwarder.ask(query("1-example.com", flags=0x2800)) is None
        assert await forwarder.ask(b"nonsense") is None


def test_the_machines_servers_are_read_in_their_order():
    text = "# nameserver 9.9.9.9\nsearch example.com\nnameserver 192.0.2.1\nnameserver\t::1\nnameserver\noptions x\n"
    assert dns_forwarder.nameservers(text) == [("192.0.2.1", 53), ("::1", 53)]
