"""Trouble on the wire: a transport around another one, in which one request or one watch event goes wrong.

The trouble is named and numbered before the run, so that each run is a plan and not a chance.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Literal, Protocol, Self

import msgspec

from skysail.kube.client.errors import ReplyLost, Unreachable
from skysail.kube.client.transport import Reply, Request, Stream, Transport
from tests.simulation.statuses import failure
from tests.support import rights
from tests.support.virtual_time import Freeze, unfrozen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from types import TracebackType

    from tests.simulation.outages import Outages

On = Literal["effect", "write", "read", "event", "call", "survey"]

REFUSALS: dict[str, tuple[int, str]] = {
    "conflict": (409, "Conflict"),
    "already exists": (409, "AlreadyExists"),
    "forbidden": (403, "Forbidden"),
    "not found": (404, "NotFound"),
    "invalid": (422, "Invalid"),
    "throttled": (429, "TooManyRequests"),
    "server error": (500, "InternalError"),
    "unavailable": (503, "ServiceUnavailable"),
}
LOST = ("reply lost, done", "reply lost, not done", "unreachable")
EFFECT_TROUBLES = ("crash", "twin", "pause")
WRITE_TROUBLES = (*LOST, *REFUSALS)
READ_TROUBLES = ("reply lost, not done", "unreachable", "throttled", "server error", "expired", "stale")
EVENT_TROUBLES = ("drop", "repeat", "swap", "delay", "replay", "end", "break", "expire", "silence", "deafness")

_GONE = failure(410, "Expired", "too old resource version: 1 (2)")
_FIRST_ERROR = 400
_INSTANT = 0.0001
_RETRY_SECONDS = 300.0
_WAKING_SECONDS = 1.0
_DELAY_SECONDS = 30.0


class InjectedFault(msgspec.Struct, frozen=True):
    """What goes wrong, at the n-th effect, read or watch event of a process.

    An effect is a write to the API server or a call to a cloud: both are counted in one sequence, and each by itself.
    `then` befalls the process that starts after a crash, and the API server tells it how things were so many changes
    `back`.
    """

    on: On
    at: int
    what: str
    then: InjectedFault | None = None
    back: int = 0


class Effect(msgspec.Struct, frozen=True):
    method: str
    path: str

    @property
    def is_end(self) -> bool:
        """Whether something ends by it, here or at a cloud."""
        return self.method in {"DELETE", "END"}


class Fate(Protocol):
    """What can befall the process at the other end of a transport."""

    is_deposed: bool

    def crash(self) -> None:
        """End it; another one starts later."""

    def twin(self) -> None:
        """Start another one beside it."""

    def depose(self) -> None:
        """Let its lease run out: it may not act any more."""

    def retire(self) -> None:
        """End it for good, as a process ends that finds its lease lost."""

    def begin(self, what: str) -> None:
        """Let this last for a while, for every process."""


class FaultyTransport:
    """The connection of one process. `behind` connects to a server that lags."""

    def __init__(
        self,
        inner: Transport,
        fault: InjectedFault | None,
        fate: Fate,
        outages: Outages,
        *,
        behind: Callable[[], Transport],
    ) -> None:
        self._inner = inner
        self._behind = behind
        self._trouble = fault
        self.weather = outages
        self.effects: list[Effect] = []
        self.writes = 0
        self.reads = 0
        self.events = 0
        self.calls = 0
        # How many effects there were before each look at what a cloud runs.
        self.surveys: list[int] = []
        # What a process changed whose lease had run out, here or at a cloud.
        self.strays = 0
        # Who is held does nothing at all: what happened meanwhile is known after the reply that held it.
        self.freeze = Freeze()
        self.fate = fate
        self.struck = False

    async def send(self, request: Request) -> Reply:
        if not self.fate.is_deposed:
            await self.freeze.over()
        what = self._trouble_with(request)
        if self.weather.lasts("API server down"):
            raise Unreachable("API server down")
        if self.weather.lasts("storm of 429"):
            return _reply(*REFUSALS["throttled"])
        return await (self._send_into(request, what) if what else self._answer(request))

    async def open(self, request: Request) -> Stream:
        await self.freeze.over()
        if self.weather.lasts("API server down"):
            raise Unreachable("API server down")
        rights.observe("WATCH", request.path, 0)
        return FaultyStream(await self._inner.open(request), self)

    async def close(self) -> None:
        await self._inner.close()

    def effect(self, effect: Effect) -> str | None:
        self.effects.append(effect)
        return self.strikes("effect", len(self.effects))

    async def hold(self, what: str) -> None:
        """Stop the process while another one works; in a pause, but not in a stall, it loses its lease."""
        with unfrozen():
            await asyncio.sleep(_INSTANT)  # what has passed the fence goes out
        if what == "pause":
            self.fate.depose()
        self.fate.twin()
        self.freeze.begin()
        with unfrozen():
            await asyncio.sleep(_RETRY_SECONDS)
            wake = self.fate.retire if what == "pause" else self.freeze.end
            asyncio.get_running_loop().call_later(_WAKING_SECONDS, wake)

    def strikes(self, on: On, number: int) -> str | None:
        if self._trouble is None or (self._trouble.on, self._trouble.at) != (on, number):
            return None
        self.struck = True
        return self._trouble.what

    def _trouble_with(self, request: Request) -> str | None:
        if not request.is_mutating:
            self.reads += 1
            return self.strikes("read", self.reads)
        self.writes += 1
        self.strays += self.fate.is_deposed and not request.path.endswith("/events")
        return self.effect(Effect(request.method, request.path)) or self.strikes("write", self.writes)

    async def _send_into(self, request: Request, what: str) -> Reply:
        match what:
            case "crash" | "death":
                await self._answer(request)
                self.fate.crash()
                await asyncio.Event().wait()
            case "twin":
                self.fate.twin()
            case "pause" | "stall":
                reply = await self._answer(request)
                await self.hold(what)
                return reply
            case "reply lost, done":
                await self._answer(request)
                raise ReplyLost(what)
            case "reply lost, not done":
                raise ReplyLost(what)
            case "unreachable":
                raise Unreachable(what)
            case "not found" if request.method == "DELETE":
                # The server does not lie: who is told that there is nothing to delete was only not the first.
                reply = await self._answer(request)
                return _reply(*REFUSALS[what]) if reply.status < _FIRST_ERROR else reply
            case "expired":
                return _reply(410, "Expired")
            case "stale":
                return await self._behind().send(request)
            case _:
                return _reply(*REFUSALS[what])
        return await self._answer(request)

    async def _answer(self, request: Request) -> Reply:
        """Who is stopped and deposed learns of the answer later, and meets the fence then.

        Without a fence nothing helps who is stopped between the last look and the call, so a stall spares that moment.
        """
        with unfrozen():
            reply = await self._inner.send(request)
        rights.observe(request.method, request.path, reply.status)
        if self.fate.is_deposed:
            await self.freeze.over()
        return reply


class FaultyStream:
    """A watch that lies about one event."""

    def __init__(self, inner: Stream, transport: FaultyTransport) -> None:
        self._inner = inner
        self._transport = transport
        self._oldest = b""
        self._held = b""

    @property
    def status(self) -> int:
        return self._inner.status

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._inner.__aexit__(kind, error, trace)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        is_deaf = False
        async for line in self._inner:
            await self._transport.freeze.over()
            if self._transport.weather.lasts("API server down"):
                raise ReplyLost("API server down")
            what = self._trouble_with(line)
            if what in {"end", "expire"}:
                if what == "expire":
                    yield _line({"type": "ERROR", "object": _GONE})
                return
            is_deaf = is_deaf or what == "deafness"
            if is_deaf and not _is_bookmark(line):
                continue
            for told in await self._distorted(line, what):
                yield told

    def _trouble_with(self, line: bytes) -> str | None:
        if _is_bookmark(line):
            return None
        self._transport.events += 1
        return self._transport.strikes("event", self._transport.events)

    async def _distorted(self, line: bytes, what: str | None) -> list[bytes]:
        """What is told instead of this line."""
        self._oldest = self._oldest or line
        held, self._held = self._held, b""
        match what:
            case "drop":
                return []
            case "repeat":
                return [line, line]
            case "swap":
                self._held = line
                return []
            case "replay":
                return [line, self._oldest]
            case "delay":
                await asyncio.sleep(_DELAY_SECONDS)
            case "silence":
                await asyncio.Event().wait()
            case "break":
                raise ReplyLost(what)
        return [line, held] if held else [line]


def _reply(code: int, reason: str) -> Reply:
    headers = {"retry-after": "1"} if code in {429, 503} else {}
    return Reply(status=code, body=_line(failure(code, reason, "trouble")), headers=headers)


def _line(content: object) -> bytes:
    return json.dumps(content).encode() + b"\n"


def _is_bookmark(line: bytes) -> bool:
    return line.startswith(b'{"type":"BOOKMARK"')
