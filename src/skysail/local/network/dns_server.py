"""The name server of the pods: answers from the zone, over UDP and TCP.

Two things differ from an ordinary one. A question for a pod that has not come yet is held for a while, because the
members of one job start together and some programs ask only once. And a name of the outside world that nobody can look
up does not exist, rather than being a failure of the server, which programs would take for a passing trouble.
"""

from __future__ import annotations

import asyncio
import random
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
    """The zone as it is now. It is computed when somebody asks after a change, not at every change."""

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
        """What the zone is made from has changed."""
        self._zone = None
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self) -> None:
        """Until the next change."""
        await self._changed.wait()


class DnsResponder:
    """Turns a message into its answer. Knows no sockets."""

    def __init__(
        self,
        known: ZoneCache,
        *,
        rng: random.Random,
        upstream: Upstream | None = None,
        hold_seconds: float = HOLD_SECONDS,
    ) -> None:
        self._zone_cache = known
        self._rng = rng
        self._upstream = upstream
        self._hold_seconds = hold_seconds

    def is_quick(self, question: Question) -> bool:
        """Whether the answer is known at once."""
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
        """May take as long as a name is held."""
        if not dns_zone.is_ours(question.name) and self._upstream is not None:
            return await self._upstream.ask(message) or self.answer_now(question)
        try:
            async with asyncio.timeout(self._hold_seconds):
                while self._zone_cache.zone.is_pending(question.name):
                    await self._zone_cache.wait()
        except TimeoutError:
            pass  # it did not come: say so
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
async def serve(dns_responder: DnsResponder, host: str, port: int) -> AsyncIterator[int]:
    """Answer on this address meanwhile. Gives the port, which is the same for UDP and TCP."""
    task_set = TaskSet()
    server = await asyncio.start_server(
        lambda reader, writer: _start(task_set, dns_responder, reader, writer), host, port, limit=2**17
    )
    bound: int = server.sockets[0].getsockname()[1]
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
    task_set.start(_converse(dns_responder, reader, writer))


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
        # Where too many wait, nobody more is held: a server that forgets is worse than one that says no.
        if self._dns_responder.is_quick(question) or len(self._task_set) >= _MAX_WAITING:
            self._transport.sendto(dns_wire.truncate(self._dns_responder.answer_now(question), question), addr)
        else:
            self._task_set.start(self._answer_later(question, data, addr))

    async def _answer_later(self, question: Question, message: bytes, asker: tuple[str, int]) -> None:
        answer = await self._dns_responder.answer(question, message)
        self._transport.sendto(dns_wire.truncate(answer, question), asker)


async def _converse(dns_responder: DnsResponder, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Questions over TCP, until the asker has enough or falls silent."""
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
