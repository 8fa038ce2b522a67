"""One instance of a simulated cloud, from its creation to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from skysail.cloud.account import Instance
from skysail.cloud.errors import ProviderError, Refused
from skysail.cloud.provider import Ended
from skysail.cloud.simulated.ledger import Verb
from skysail.cloud.simulated.programs import Program

_KILLED = 137
_START_ERROR = 128
PREEMPTED = "Preempted"
DEADLINE = "DeadlineExceeded"
LOST = "Lost"


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How long things take, in seconds. `deadline` is counted from the creation, `preempt` from the start."""

    start: float
    end: float
    deadline: float | None
    preempt: float | None
    lingers: bool


class Record(Protocol):
    """Writes what happened to the instance."""

    def __call__(self, verb: Verb, *, exit_: Ended | None = None) -> None: ...


class Life:
    """Runs as one task. `known` is how far it has come: an account that is opened again finds instances half way."""

    def __init__(
        self, known: Instance, program: Program, pace: Pace, *, record: Record, now: Callable[[], float]
    ) -> None:
        self.program = program
        self.is_running = False
        self._known = known
        self._pace = pace
        self._record = record
        self._now = now
        self._called_off = asyncio.Event()
        self._reason = ""
        self._grace = 0.0
        self._delay = pace.end
        self._alarms: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Until its end is in the ledger."""
        async with asyncio.TaskGroup() as self._tasks:
            if self._pace.deadline is not None:
                self._set_alarm(self._known.created + self._pace.deadline, DEADLINE)
            work = self._tasks.create_task(self._work())
            called_off = self._tasks.create_task(self._called_off.wait())
            await asyncio.wait({work, called_off}, return_when=asyncio.FIRST_COMPLETED)
            if self.is_running:
                await self.program.stop(self._grace)
            else:  # it has yet to begin, or lingers
                work.cancel()
            await asyncio.wait({work})
            await self._end()
            for task in (called_off, *self._alarms):
                task.cancel()

    async def end(self, grace: float, *, reason: str = "", delay: float = 0.0) -> None:
        """Ask for the end. `reason` is for one that its program did not choose. The shortest grace counts."""
        self._reason = self._reason or reason
        self._grace = grace
        self._delay = max(self._delay, delay)
        self.call_off()
        if self.is_running:
            await self.program.stop(grace)

    def call_off(self) -> None:
        """End it at the next occasion, and at once where it runs."""
        self._called_off.set()

    async def _work(self) -> None:
        if self._known.exit is None:
            self._exited(await self._outcome())
        if self._pace.lingers:
            await self._called_off.wait()

    async def _outcome(self) -> Ended:
        if self._known.started is None:
            await asyncio.sleep(self._known.created + self._pace.start - self._now())
            try:
                await self.program.start()
            except ProviderError as error:
                reason = error.reason if isinstance(error, Refused) else "StartError"
                return Ended(code=_START_ERROR, reason=reason, message=str(error), ended=self._now())
            self._record("started")
        self.is_running = True
        if self._pace.preempt is not None:
            self._set_alarm((self._known.started or self._now()) + self._pace.preempt, PREEMPTED)
        outcome = await self.program.wait()
        self.is_running = False
        return outcome

    def _exited(self, outcome: Ended) -> None:
        if self._reason:
            outcome = msgspec.structs.replace(outcome, reason=self._reason)
        self._record("exited", exit_=outcome)
        self._known = msgspec.structs.replace(self._known, exit=outcome)

    async def _end(self) -> None:
        if self._known.exit is None and self._reason:
            self._exited(Ended(code=_KILLED, reason=self._reason, ended=self._now()))
        await asyncio.sleep(self._delay)
        await self.program.release()
        self._record("ended")

    def _set_alarm(self, at: float, reason: str) -> None:
        self._alarms.append(self._tasks.create_task(self._alarm(at - self._now(), reason)))

    async def _alarm(self, seconds: float, reason: str) -> None:
        await asyncio.sleep(seconds)
        await self.end(0.0, reason=reason)


def lost(now: float) -> Ended:
    """The exit of an instance whose machine did not outlive its account's process."""
    return Ended(code=_KILLED, reason=LOST, message="The machine of the simulated cloud went away.", ended=now)
