"""Trouble between a process and a cloud: one call, or one look at what the cloud runs, goes wrong.

The account is the same for all processes and outlives them; the connection of each to it is its own.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from skysail.cloud.account import Inventory
from skysail.cloud.errors import Gone, NoCapacity, OutcomeUnknown, Rejected, Throttled
from tests.simulation.faults import Effect
from tests.simulation.outages import LASTING
from tests.support.virtual_time import unfrozen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from skysail.cloud.account import CloudAccount, Instance, LaunchSpec, Timings
    from skysail.cloud.offers import OfferList
    from skysail.cloud.provider import Features, Output, PortConnection, Session
    from tests.simulation.faults import FaultyTransport

T = TypeVar("T")

_SLOW_SECONDS = 30.0

# What may befall a call without changing how the story ends. What befalls any effect befalls it, too.
CALL_TROUBLES = (
    "crash before",
    "lost, done",
    "lost, not done",
    "throttled",
    "slow",
    "malformed",
    "no capacity",
    "not found",
    "conflict",
)
# What ends the story in another way, and must still waste no money.
CALL_REFUSALS = ("unauthorized", "out of money")
SURVEY_TROUBLES = ("lost", "throttled", "empty", "partial", "partial lie", "slow", "unauthorized")


class FaultyCloud:
    """The connection of one process to an account. Each create and end is one of its effects."""

    def __init__(self, account: CloudAccount, transport: FaultyTransport) -> None:
        self._account = account
        self._transport = transport

    @property
    def name(self) -> str:
        return self._account.name

    @property
    def account(self) -> str:
        return self._account.account

    @property
    def features(self) -> Features:
        return self._account.features

    @property
    def terms(self) -> Timings:
        return self._account.terms

    async def create(self, spec: LaunchSpec) -> Instance:
        return await self._call(Effect("CREATE", spec.claim), lambda: self._account.create(spec))

    async def terminate(self, instance: str, grace: float) -> None:
        await self._call(Effect("END", instance), lambda: self._account.terminate(instance, grace))

    async def delete_volume(self, namespace: str, volume: str) -> None:
        await self._call(Effect("DELETE VOLUME", volume), lambda: self._account.delete_volume(namespace, volume))

    async def list(self) -> Inventory:
        what = await self._survey()
        inventory = await self._asked(self._account.list)
        if what == "empty" or self._transport.weather.lasts("listings lie"):
            return Inventory(())
        if what == "partial":
            return Inventory(inventory.instances[1:], complete=False)
        if what == "partial lie":
            return Inventory(inventory.instances[:-1])
        await _answer(what)
        return inventory

    async def offers(self) -> OfferList:
        await self._transport.freeze.over()
        self._suffer()
        return await self._asked(self._account.offers)

    async def get(self, instance: str) -> Instance | None:
        what = await self._survey()
        if what not in {"empty", "partial", "partial lie"}:
            await _answer(what)
        return await self._asked(lambda: self._account.get(instance))

    async def watch(self) -> AsyncIterator[str]:
        async for claim in self._account.watch():
            await self._transport.freeze.over()
            yield claim

    def output(self, instance: str, *, rank: int = 0) -> AsyncIterator[Output]:
        return self._account.output(instance, rank=rank)

    async def exec(self, instance: str, command: tuple[str, ...], *, stdin: bool, tty: bool, rank: int = 0) -> Session:
        return await self._account.exec(instance, command, stdin=stdin, tty=tty, rank=rank)

    async def attach(self, instance: str, *, stdin: bool, rank: int = 0) -> Session:
        return await self._account.attach(instance, stdin=stdin, rank=rank)

    async def dial(self, instance: str, port: int, *, rank: int = 0) -> PortConnection:
        return await self._account.dial(instance, port, rank=rank)

    async def _asked(self, question: Callable[[], Awaitable[T]]) -> T:
        with unfrozen():
            answer = await question()
        await self._transport.freeze.over()
        return answer

    async def _survey(self) -> str | None:
        await self._transport.freeze.over()
        self._transport.surveys.append(len(self._transport.effects))
        what = self._transport.strikes("survey", len(self._transport.surveys))
        self._suffer()
        return what

    def _suffer(self) -> None:
        if self._transport.weather.lasts("cloud down"):
            raise OutcomeUnknown("cloud down")
        if self._transport.weather.lasts("storm of 429"):
            raise Throttled("storm of 429", retry_after=20.0)

    async def _call(self, effect: Effect, call: Callable[[], Awaitable[T]]) -> T:
        self._transport.calls += 1
        self._transport.strays += self._transport.fate.is_deposed
        what = self._transport.effect(effect) or self._transport.strikes("call", self._transport.calls)
        fate = self._transport.fate
        if what in LASTING:
            fate.begin(what)
        self._suffer()
        match what:
            case "crash before":
                fate.crash()
                await asyncio.Event().wait()
            case "twin":
                fate.twin()
            case "lost, not done":
                raise OutcomeUnknown(what)
            case "no capacity" | "unauthorized" | "out of money" | "not found" | "conflict" | "throttled" | "slow":
                await _answer(what)
        done = await self._asked(call)
        match what:
            case "crash" | "death":
                fate.crash()
                await asyncio.Event().wait()
            case "pause" | "stall":
                await self._transport.hold(what)
            case "lost, done" | "malformed":
                raise OutcomeUnknown(what)
        return done


async def _answer(what: str | None) -> None:
    match what:
        case "slow":
            await asyncio.sleep(_SLOW_SECONDS)
        case "throttled":
            raise Throttled(what, retry_after=20.0)
        case "no capacity":
            raise NoCapacity(what)
        case "unauthorized" | "out of money":
            raise Rejected("Refused", what)
        case "not found":
            raise Gone(what)
        case "lost" | "conflict":
            raise OutcomeUnknown(what)
