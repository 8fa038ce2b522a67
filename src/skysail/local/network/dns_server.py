"""Name server of the pods: answers from the zone, over UDP and TCP.

It differs from an ordinary server in two ways. A query for a pod that does not exist yet is delayed, because the
members of a job start together and some programs query only once. A name outside the cluster that cannot be resolved is
NXDOMAIN instead of SERVFAIL, which programs would take for a transient failure.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from typing import cast

from skysail.local.network import dns_wire, dns_zone
from skysail.local.network.dns_forwarder import Upstream
from skysail.local.network.dns_wire import Code, NotAQuery, QueryError, Question, Record, Type
from skysail.local.network.dns_zone import Zone
from skysail.local.network.task_set import TaskSet

HOLD_SECONDS = 3.0
_IDLE_SECONDS = 10.0
_MAX_WAITING = 1000


class ZoneCache:
    """The current zone, built at the first query after a change, not at every change."""

    def __init__(self, build: Callable[[], Zone]) -> None:
        self._build = build
        self._zone: Zone | None = None
        self._changed = asyncio.Event()

    @property
    def zone(self) -> Zone:
        if self._zone is None:
            self._zone = self._build()
        return self._zone

    def touch(self) -> None:
        """Invalidate the zone after a change of its sources."""
        self._zone = None
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self) -> None:
        """Wait for the next change."""
        await self._changed.wait()


class DnsResponder:
    """Computes the answer to a message. Knows no sockets."""

    def __init__(
        self,
        zone_cache: ZoneCache,
        *,
        rng: random.Random,
        upstream: Upstream | None = None,
        hold_seconds: float = HOLD_SECONDS,
    ) -> None:
        self._zone_cache = zone_cache
        self._rng = rng
        self._upstream = upstream
        self._hold_seconds = hold_seconds

    def is_immediate(self, question: Question) -> bool:
        """Return whether the answer is available without waiting."""
        if dns_zone.is_ours(question.name):
            return not self._zone_cache.zone.is_pending(question.name)
        return self._upstream is None

    def answer_now(self, question: Question) -> bytes:
        zone = self._zone_cache.zone
        if question.name not in zone.aliases:
            code = Code.OK if zone.has(question.name) else Code.NO_SUCH_NAME
            return dns_wire.answer(question, code, *self._records(zone, question))
        real = zone.aliases[question.name]
        records = [dns_wire.address(real, address) for address in zone.addresses.get(real, ())]
        return dns_wire.answer(
            question, Code.OK, [dns_wire.alias(question.name, real), *(records if question.wants(Type.A) else ())]
        )

    async def answer(self, question: Question, message: bytes) -> bytes:
        """Return the answer. Waits while the name is pending, up to the hold time."""
        if not dns_zone.is_ours(question.name) and self._upstream is not None:
            return await self._upstream.ask(message) or self.answer_now(question)
        try:
            async with asyncio.timeout(self._hold_seconds):
                while self._zone_cache.zone.is_pending(question.name):
                    await self._zone_cache.wait()
        except TimeoutError:
            pass  # the pod did not appear: answer that
        return self.answer_now(question)

    def _records(self, zone: Zone, question: Question) -> tuple[list[Record], list[Record]]:
        name, found, extra = question.name, [], []
        if question.wants(Type.A):
            found += [dns_wire.address(name, address) for address in zone.addresses.get(name, ())]
            self._rng.shuffle(found)
        if question.wants(Type.PTR) and name in zone.pointers:
            found.append(dns_wire.pointer(name, zone.pointers[name]))
        if question.wants(Type.SRV):
            for target in zone.targets.get(name, ()):
                found.append(dns_wire.target(name, target.host, target.port))
                extra += [dns_wire.address(target.host, address) for address in zone.addresses.get(target.host, ())]
        return found, extra


@asynccontextmanager
async def serve(dns_responder: DnsResponder, listener: socket.socket) -> AsyncIterator[int]:
    """Serve on the address of this listener inside the block. Yields the port, which is the same for UDP and TCP."""
    task_set = TaskSet()
    server = await asyncio.start_server(
        lambda reader, writer: _start(task_set, dns_responder, reader, writer), sock=listener, limit=2**17
    )
    host, bound = server.sockets[0].getsockname()
    try:
        datagrams, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: _Datagrams(dns_responder, task_set), local_addr=(host, bound)
        )
        try:
            yield bound
        finally:
            datagrams.close()
    finally:
        server.close()
        await task_set.close()


def _start(
    task_set: TaskSet, dns_responder: DnsResponder, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    task_set.start(_serve_tcp(dns_responder, reader, writer))


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, dns_responder: DnsResponder, task_set: TaskSet) -> None:
        self._dns_responder = dns_responder
        self._task_set = task_set

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        try:
            question = dns_wire.read(data)
        except NotAQuery:
            return
        except QueryError as error:
            self._transport.sendto(dns_wire.failure(data, error.code), addr)
            return
        # With too many waiting queries, answer at once: a negative answer is better than no answer.
        if self._dns_responder.is_immediate(question) or len(self._task_set) >= _MAX_WAITING:
            self._transport.sendto(dns_wire.truncate(self._dns_responder.answer_now(question), question), addr)
        else:
            self._task_set.start(self._answer_later(question, data, addr))

    async def _answer_later(self, question: Question, message: bytes, asker: tuple[str, int]) -> None:
        answer = await self._dns_responder.answer(question, message)
        self._transport.sendto(dns_wire.truncate(answer, question), asker)


async def _serve_tcp(dns_responder: DnsResponder, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve queries over TCP, until the client closes or is idle."""
    with closing(writer):
        try:
            while True:
                async with asyncio.timeout(_IDLE_SECONDS):
                    message = await dns_wire.receive(reader)
                writer.write(dns_wire.tcp_frame(await _answer(dns_responder, message)))
                await writer.drain()
        except (asyncio.IncompleteReadError, NotAQuery, OSError, TimeoutError):
            return


async def _answer(dns_responder: DnsResponder, message: bytes) -> bytes:
    try:
        return await dns_responder.answer(dns_wire.read(message), message)
    except QueryError as error:
        return dns_wire.failure(message, error.code)
