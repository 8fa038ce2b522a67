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
from skysail.local.network.dns_wire import CannotAnswer, Code, NotAQuestion, Question, Record, Type
from skysail.local.network.dns_zone import Zone
from skysail.local.network.task_set import Tasks

HOLD_SECONDS = 3.0
_IDLE_SECONDS = 10.0
_MOST_WAITING = 1000


class Names:
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


class Responder:
    """Turns a message into its answer. Knows no sockets."""

    def __init__(
        self,
        known: Names,
        *,
        rng: random.Random,
        upstream: Upstream | None = None,
        hold_seconds: float = HOLD_SECONDS,
    ) -> None:
        self._names = known
        self._rng = rng
        self._upstream = upstream
        self._hold_seconds = hold_seconds

    def is_quick(self, question: Question) -> bool:
        """Whether the answer is known at once."""
        if dns_zone.is_ours(question.name):
            return not self._names.zone.expects(question.name)
        return self._upstream is None

    def answer_now(self, question: Question) -> bytes:
        zone = self._names.zone
        if question.name not in zone.aliases:
            code = Code.OK if zone.knows(question.name) else Code.NO_SUCH_NAME
            return dns_wire.answer(question, code, *self._records(zone, question))
        real = zone.aliases[question.name]
        found = [dns_wire.address(real, address) for address in zone.addresses.get(real, ())]
        return dns_wire.answer(
            question, Code.OK, [dns_wire.alias(question.name, real), *(found if question.wants(Type.A) else ())]
        )

    async def answer(self, question: Question, message: bytes) -> bytes:
        """May take as long as a name is held."""
        if not dns_zone.is_ours(question.name) and self._upstream is not None:
            return await self._upstream.ask(message) or self.answer_now(question)
        try:
            async with asyncio.timeout(self._hold_seconds):
                while self._names.zone.expects(question.name):
                    await self._names.wait()
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
async def serve(responder: Responder, host: str, port: int) -> AsyncIterator[int]:
    """Answer on this address meanwhile. Gives the port, which is the same for UDP and TCP."""
    tasks = Tasks()
    server = await asyncio.start_server(
        lambda reader, writer: _start(tasks, responder, reader, writer), host, port, limit=2**17
    )
    bound: int = server.sockets[0].getsockname()[1]
    try:
        datagrams, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: _Datagrams(responder, tasks), local_addr=(host, bound)
        )
        try:
            yield bound
        finally:
            datagrams.close()
    finally:
        server.close()
        await tasks.close()


def _start(tasks: Tasks, responder: Responder, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    tasks.start(_converse(responder, reader, writer))


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, responder: Responder, tasks: Tasks) -> None:
        self._responder = responder
        self._tasks = tasks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        try:
            question = dns_wire.read(data)
        except NotAQuestion:
            return
        except CannotAnswer as error:
            self._transport.sendto(dns_wire.failure(data, error.code), addr)
            return
        # Where too many wait, nobody more is held: a server that forgets is worse than one that says no.
        if self._responder.is_quick(question) or len(self._tasks) >= _MOST_WAITING:
            self._transport.sendto(dns_wire.fit(self._responder.answer_now(question), question), addr)
        else:
            self._tasks.start(self._answer_later(question, data, addr))

    async def _answer_later(self, question: Question, message: bytes, asker: tuple[str, int]) -> None:
        answer = await self._responder.answer(question, message)
        self._transport.sendto(dns_wire.fit(answer, question), asker)


async def _converse(responder: Responder, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Questions over TCP, until the asker has enough or falls silent."""
    with closing(writer):
        try:
            while True:
                async with asyncio.timeout(_IDLE_SECONDS):
                    message = await dns_wire.receive(reader)
                writer.write(dns_wire.framed(await _answer(responder, message)))
                await writer.drain()
        except (asyncio.IncompleteReadError, NotAQuestion, OSError, TimeoutError):
            return


async def _answer(responder: Responder, message: bytes) -> bytes:
    try:
        return await responder.answer(dns_wire.read(message), message)
    except CannotAnswer as error:
        return dns_wire.failure(message, error.code)
