from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from skysail.local.cluster import tcp_proxy
from skysail.local.errors import Refused


@contextlib.asynccontextmanager
async def door_to(answer):
    """A door, and behind it a server that treats each connection with `answer`."""
    inner = await asyncio.start_server(answer, "127.0.0.1", 0)

    async def dial() -> socket.socket:
        line = socket.socket()
        line.setblocking(False)
        await asyncio.get_running_loop().sock_connect(line, inner.sockets[0].getsockname())
        return line

    listener = tcp_proxy.open_listener(0)
    async with inner, await tcp_proxy.serve(listener, dial):
        yield listener.getsockname()


async def answer_after_the_end(reader, writer):
    """Like HTTP/1.0: read all, then speak, then end."""
    said = await reader.read()
    writer.write(said.upper() * 1000)
    await writer.drain()
    writer.close()


async def test_bytes_go_in_and_out_and_an_end_is_passed_on(tmp_path):
    async with door_to(answer_after_the_end) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"ahoy")
        writer.write_eof()
        assert await reader.read() == b"AHOY" * 1000
        writer.close()


async def test_a_caller_who_breaks_off_ends_the_connection_inside():
    ended = asyncio.Event()

    async def wait_for_end(reader, writer):
        await reader.read()
        ended.set()
        writer.close()

    async with door_to(wait_for_end) as address:
        _, writer = await asyncio.open_connection(*address)
        writer.write(b"ahoy")
        await writer.drain()
        writer.transport.abort()
        await ended.wait()


async def test_where_nothing_answers_inside_the_caller_is_let_go():
    async def dial() -> socket.socket:
        raise Refused("no")

    listener = tcp_proxy.open_listener(0)
    async with await tcp_proxy.serve(listener, dial):
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        assert await reader.read() == b""
        writer.close()


def test_a_taken_port_is_replaced_by_a_free_one():
    with tcp_proxy.open_listener(0) as first, tcp_proxy.open_listener(first.getsockname()[1]) as second:
        assert second.getsockname()[1] not in {0, first.getsockname()[1]}


def test_the_port_of_the_last_time_is_taken_again():
    """One that the kernel gives to nobody who asks for any: such a one may be gone meanwhile."""
    with tcp_proxy.open_listener(29_873) as first:
        port = first.getsockname()[1]
    with tcp_proxy.open_listener(port) as second:
        assert second.getsockname()[1] == port


@pytest.fixture(autouse=True)
async def _no_connection_stays_behind():
    """A transport that nobody closed would warn after its test, in another one."""
    yield
    await asyncio.sleep(0)


async def test_a_proxy_that_ends_leaves_no_task_behind():
    """A task that is left when the event loop ends is reported as destroyed: here one whose dialling takes long."""
    listener, begun = tcp_proxy.open_listener(0), asyncio.Event()

    async def dial() -> socket.socket:
        begun.set()
        await asyncio.sleep(3600)
        raise AssertionError("never dialled")

    before = asyncio.all_tasks()
    async with await tcp_proxy.serve(listener, dial) as proxy:
        _, writer = await asyncio.open_connection(*listener.getsockname())
        await begun.wait()
    assert asyncio.all_tasks() <= before
    # A connection that the event loop accepts at the end gets no task any more.
    proxy._accept(asyncio.StreamReader(), writer)
    assert asyncio.all_tasks() <= before
    assert writer.is_closing()
