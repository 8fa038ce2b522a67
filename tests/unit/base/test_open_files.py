"""Limits of open files: connections by caller, and the soft limit of the process."""

import asyncio
import contextlib
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from skysail.base import open_files
from skysail.base.open_files import CallerLimits, LimitedListener


def test_admit_caller_above_its_limit_is_refused_and_others_are_not():
    limits = CallerLimits(total=10, per_caller=2)
    assert [limits.admit("10.244.0.2") for _ in range(3)] == [True, True, False]
    assert limits.admit("10.244.0.3")
    limits.release("10.244.0.2")
    assert limits.admit("10.244.0.2")


def test_admit_all_callers_together_have_a_limit():
    limits = CallerLimits(total=3, per_caller=2)
    assert [limits.admit(f"10.244.0.{number}") for number in range(5)] == [True, True, True, False, False]


@pytest.fixture
def listener() -> LimitedListener:
    return LimitedListener(socket.create_server(("127.0.0.1", 0)), CallerLimits(total=100, per_caller=2))


async def _connect(listener: LimitedListener, source: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = listener.getsockname()
    return await asyncio.open_connection(host, port, local_addr=(source, 0))


@asynccontextmanager
async def _greeter(listener: LimitedListener) -> AsyncIterator[None]:
    """Serve a greeting, and return only when both sides of every connection are closed."""
    answering: set[asyncio.Task[None]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.add(asyncio.current_task())
        writer.write(b"ahoy")
        await reader.read()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(answer, sock=listener):
        yield
        await asyncio.gather(*answering)


async def test_listener_caller_with_too_many_connections_is_closed_until_one_ends(listener):
    async with _greeter(listener):
        first, second, third = [await _connect(listener, "127.0.0.2") for _ in range(3)]
        assert await first[0].read(4) == b"ahoy"
        assert await second[0].read(4) == b"ahoy"
        assert await _end(third) == b""
        other = await _connect(listener, "127.0.0.3")
        assert await other[0].read(4) == b"ahoy"
        await _close(first)
        await _until_served(listener)
        for connection in (second, third, other):
            await _close(connection)


async def test_listener_callers_on_the_same_machine_have_no_limit(listener):
    async with _greeter(listener):
        opened = [await _connect(listener, "127.0.0.1") for _ in range(5)]
        assert [await reader.read(4) for reader, _ in opened] == [b"ahoy"] * 5
        for connection in opened:
            await _close(connection)


async def _close(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    connection[1].close()
    with contextlib.suppress(ConnectionError):
        await connection[1].wait_closed()


async def _end(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bytes:
    try:
        return await connection[0].read(4)
    except ConnectionError:
        return b""


async def _until_served(listener: LimitedListener) -> None:
    """A connection that has ended is counted until the server has seen its end."""
    async with asyncio.timeout(30):
        while True:
            connection = await _connect(listener, "127.0.0.2")
            answer = await _end(connection)
            await _close(connection)
            if answer:
                return


def test_raise_limit_never_lowers_it_and_never_exceeds_the_hard_limit(monkeypatch):
    known = {"limits": (1024, 4096)}
    monkeypatch.setattr(resource, "getrlimit", lambda _: known["limits"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: known.update(limits=limits))
    open_files.raise_limit()
    assert known["limits"] == (4096, 4096)
    known["limits"] = (200_000, 1_000_000)
    open_files.raise_limit()
    assert known["limits"] == (200_000, 1_000_000)
    known["limits"] = (1024, resource.RLIM_INFINITY)
    open_files.raise_limit()
    assert known["limits"] == (65536, resource.RLIM_INFINITY)
    assert open_files.limit() == 65536
