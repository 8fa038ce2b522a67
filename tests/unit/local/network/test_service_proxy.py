from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest

from skysail.local.network.service_endpoints import ServiceEndpoint
from skysail.local.network.service_proxy import ServiceProxy


async def listener(_service_endpoint: ServiceEndpoint) -> socket.socket:
    """Where the test runs there are no ClusterIPs: any free port stands for one."""
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    made.setblocking(False)
    opened.append(made)
    return made


opened: list[socket.socket] = []
FRONT = ServiceEndpoint("10.96.0.7", 80)


@pytest.fixture(autouse=True)
def _forget():
    yield
    opened.clear()


@contextlib.asynccontextmanager
async def endpoint(answer):
    """A pod: treats each connection with `answer`."""

    async def treat(reader, writer):
        with contextlib.closing(writer):
            await answer(reader, writer)

    server = await asyncio.start_server(treat, "127.0.0.1", 0)
    async with server:
        yield ServiceEndpoint(*server.sockets[0].getsockname())


def says(word: bytes):
    async def answer(_reader, writer):
        writer.write(word)

    return answer


@contextlib.asynccontextmanager
async def proxy(*endpoints: ServiceEndpoint):
    made = ServiceProxy(listener)
    await made.sync({FRONT: endpoints})
    yield made
    await made.close()


async def ask(sent: bytes = b"") -> bytes:
    reader, writer = await asyncio.open_connection(*opened[0].getsockname())
    try:
        writer.write(sent)
        with contextlib.suppress(OSError):  # who was let go already hears of it when he reads
            writer.write_eof()
        return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


# Ports that nobody is given who asks for any.
NOBODY, NO_OTHER = ServiceEndpoint("127.0.0.1", 1), ServiceEndpoint("127.0.0.1", 2)


async def test_endpoints_answer_in_turn():
    async with endpoint(says(b"one")) as one, endpoint(says(b"two")) as two, proxy(one, two):
        assert sorted([await ask() for _ in range(4)]) == [b"one", b"one", b"two", b"two"]


async def test_one_that_refuses_is_passed_over():
    async with endpoint(says(b"one")) as one, proxy(NOBODY, one, NO_OTHER):
        assert [await ask() for _ in range(3)] == [b"one"] * 3


async def test_without_an_endpoint_the_connection_is_refused_until_there_is_one():
    async with endpoint(says(b"one")) as one, proxy() as made:
        assert opened == []
        await made.sync({FRONT: (one,)})
        assert await ask() == b"one"
        where = opened.pop().getsockname()
        await made.sync({FRONT: ()})
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*where)
        await made.sync({FRONT: (one,)})
        assert await ask() == b"one"


async def test_where_no_endpoint_answers_the_connection_is_reset():
    async with proxy(NOBODY):
        with pytest.raises(ConnectionResetError):
            await ask()


async def test_new_endpoints_serve_at_once_and_old_connections_stay():
    held = asyncio.Event()

    async def wait(_reader, writer):
        writer.write(b"old")
        await held.wait()
        writer.write(b"er")

    async with endpoint(wait) as old, endpoint(says(b"new")) as new, proxy(old) as made:
        reader, writer = await asyncio.open_connection(*opened[0].getsockname())
        assert await reader.readexactly(3) == b"old"
        await made.sync({FRONT: (new,)})
        assert await ask() == b"new"
        held.set()
        assert await reader.read() == b"er"
        writer.close()
        await writer.wait_closed()


async def test_a_service_that_is_gone_is_no_longer_listened_for():
    async with endpoint(says(b"one")) as one, proxy(one) as made:
        where = opened[0].getsockname()
        await made.sync({})
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*where)


async def test_a_place_that_cannot_be_had_does_not_stop_the_others(caplog):
    async def choosy(service_endpoint: ServiceEndpoint) -> socket.socket:
        if service_endpoint == FRONT:
            raise OSError(98, "Address in use")
        return await listener(service_endpoint)

    async with endpoint(says(b"one")) as one:
        made = ServiceProxy(choosy)
        await made.sync({FRONT: (one,), ServiceEndpoint("10.96.0.8", 80): (one,)})
        assert await ask() == b"one"
        assert [record.address for record in caplog.records if hasattr(record, "address")] == ["10.96.0.7:80"]
        await made.close()


async def test_an_end_is_passed_on_and_the_answer_after_it_comes_back():
    async def answer_at_the_end(reader, writer):
        writer.write((await reader.read()).upper())

    async with endpoint(answer_at_the_end) as one, proxy(one):
        assert await ask(b"ahoy" * 100_000) == b"AHOY" * 100_000


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_conversation_that_both_have_ended_leaves_no_descriptor():
    async def answer_at_the_end(reader, writer):
        writer.write(await reader.read())

    async with endpoint(answer_at_the_end) as one, proxy(one):
        before = descriptors()
        reader, writer = await asyncio.open_connection(*opened[0].getsockname())
        writer.write(b"ahoy")
        writer.write_eof()
        assert await reader.read() == b"ahoy"
        async with asyncio.timeout(600):
            while descriptors() > before + 1:  # noqa: ASYNC110 (only our own end may stay open)
                await asyncio.sleep(0.01)
        writer.close()
        await writer.wait_closed()


async def test_a_caller_who_breaks_off_ends_the_connection_to_the_endpoint():
    broken = asyncio.Event()

    async def wait_for_end(reader, writer):
        writer.write(b"hello")
        try:
            await reader.read()
        except ConnectionResetError:
            broken.set()

    async with endpoint(wait_for_end) as one, proxy(one):
        with socket.socket() as caller:
            caller.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(caller, opened[0].getsockname())
            assert await loop.sock_recv(caller, 5) == b"hello"
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await broken.wait()


async def test_an_endpoint_that_breaks_off_is_no_end_of_the_data():
    async def break_off(_reader, writer):
        writer.write(b"half")
        await writer.drain()
        line = writer.get_extra_info("socket")
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.transport.abort()

    async with endpoint(break_off) as one, proxy(one):
        with pytest.raises(ConnectionResetError):
            await ask(b"x")


async def test_a_slow_reader_holds_up_the_writer_and_not_our_memory():
    sent = 0
    stalled = asyncio.Event()

    async def flood(_reader, writer):
        nonlocal sent
        writer.transport.set_write_buffer_limits(high=0)
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"x" * 65536)
                sent += 65536
                drained = asyncio.ensure_future(writer.drain())
                # A drain that is not done although everything else has had its turn often waits for the reader.
                for _ in range(1000):
                    await asyncio.sleep(0)
                if not drained.done():
                    stalled.set()
                await drained

    async with endpoint(flood) as one, proxy(one):
        with socket.socket() as caller:
            caller.setblocking(False)
            await asyncio.get_running_loop().sock_connect(caller, opened[0].getsockname())
            await stalled.wait()
            assert sent < 64 * 2**20
