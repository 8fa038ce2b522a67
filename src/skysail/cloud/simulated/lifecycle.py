"""One instance of a simulated cloud, from its creation to its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from skysail.cloud.account import Instance
from skysail.cloud.errors import ProviderError, Rejected
from skysail.cloud.provider import Ended
from skysail.cloud.simulated.ledger import Verb
from skysail.cloud.simulated.programs import Program

_KILLED = 137
_START_ERROR = 128
PREEMPTED = "Preempted"
DEADLINE = "DeadlineExceeded"
LOST = "Lost"
FAILED = "InstanceFailed"
# How long the program of an instance may outlive its grace period before the instance is ended without its exit code.
_STOP_SECONDS = 30.0
_RELEASE_SECONDS = 60.0
_MAX_RELEASES = 3
_FIRST_DELAY = 1.0
_MAX_DELAY = 30.0

log = logging.getLogger(__name__)


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """How long things take, in seconds. `deadline` is counted from the creation, `preempt` from the start."""

    start: float
    end: float
    deadline: float | None
    preempt: float | None
    lingers: bool


class Record(Protocol):
    """Writes what happened to the instance."""

    def __call__(self, verb: Verb, *, exit_: Ended | None = None) -> None: ...


class InstanceLifecycle:
    """Runs as one task. `previous` is how far it has come: an account that is opened again finds instances half way."""

    def __init__(
        self, previous: Instance, program: Program, timing: Timing, *, record: Record, now: Callable[[], float]
    ) -> None:
        self.program = program
        self.is_running = False
        self._known = previous
        self._timing = timing
        self._record = record
        self._now = now
        # Known before it is in the ledger, which may take no rows for a while.
        self._exit = previous.exit
        self._called_off = asyncio.Event()
        self._reason = ""
        self._grace = 0.0
        self._delay = timing.end
        self._alarms: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Return when the end of the instance is in the ledger, whatever fails on the way."""
        try:
            await self._live()
        except* Exception as failures:
            log.exception("instance failed, ending it", extra={"instance": self._known.id})
            await self._end_failed(_describe(failures))

    async def end(self, grace: float, *, reason: str = "", delay: float = 0.0) -> None:
        """Ask for the end. `reason` is for one that its program did not choose. The shortest grace counts."""
        self._reason = self._reason or reason
        self._grace = grace
        self._delay = max(self._delay, delay)
        self.request_stop()
        if self.is_running:
            await self._stop_program()

    def request_stop(self) -> None:
        """End it at the next occasion, and at once where it runs."""
        self._called_off.set()

    async def _live(self) -> None:
        async with asyncio.TaskGroup() as self._tasks:
            if self._timing.deadline is not None:
                self._set_alarm(self._known.created + self._timing.deadline, DEADLINE)
            work = self._tasks.create_task(self._work())
            called_off = self._tasks.create_task(self._called_off.wait())
            await asyncio.wait({work, called_off}, return_when=asyncio.FIRST_COMPLETED)
            if self.is_running:
                await self._stop_program()
                await asyncio.wait({work}, timeout=self._grace + _STOP_SECONDS)
            work.cancel()  # where it has yet to begin, lingers, or does not end
            await asyncio.wait({work})
            await self._end()
            for task in (called_off, *self._alarms):
                task.cancel()

    async def _stop_program(self) -> None:
        """Ask the program to end. A failure is only logged: `_live` ends an instance whose program runs on."""
        await self._is_done(self.program.stop(self._grace), "program of an instance could not be stopped")

    async def _work(self) -> None:
        if self._known.exit is None:
            self._exited(await self._outcome())
        if self._timing.lingers:
            await self._called_off.wait()

    async def _outcome(self) -> Ended:
        if self._known.started is None:
            await asyncio.sleep(self._known.created + self._timing.start - self._now())
            try:
                await self.program.start()
            except ProviderError as error:
                reason = error.reason if isinstance(error, Rejected) else "StartError"
                return Ended(code=_START_ERROR, reason=reason, message=str(error), ended=self._now())
            self._record("started")
        self.is_running = True
        if self._timing.preempt is not None:
            self._set_alarm((self._known.started or self._now()) + self._timing.preempt, PREEMPTED)
        outcome = await self.program.wait()
        self.is_running = False
        return outcome

    def _exited(self, outcome: Ended) -> None:
        if self._reason:
            outcome = msgspec.structs.replace(outcome, reason=self._reason)
        self._exit = outcome
        self._record("exited", exit_=outcome)
        self._known = msgspec.structs.replace(self._known, exit=outcome)

    async def _end(self) -> None:
        if self._known.exit is None and (reason := self._missing_exit()):
            message = "The program of the instance did not report its end." if reason == FAILED else ""
            self._exited(Ended(code=_KILLED, reason=reason, message=message, ended=self._now()))
        await asyncio.sleep(self._delay)
        await self._release()
        self._record("ended")

    async def _release(self) -> None:
        async with asyncio.timeout(_RELEASE_SECONDS):
            await self.program.remove_sandbox()

    def _missing_exit(self) -> str:
        """Return the reason of an exit that the program did not report. Empty if it was called off before its start."""
        return self._reason or (FAILED if self.is_running or not self._called_off.is_set() else "")

    async def _end_failed(self, message: str) -> None:
        """End an instance whose task failed: nothing of it runs on, and billing stops."""
        self.is_running = False
        for _ in range(_MAX_RELEASES):
            if await self._is_done(self._release(), "failed instance could not be released"):
                break
            await asyncio.sleep(_FIRST_DELAY)
        if self._known.exit is None:
            await self._until_recorded("exited", self._exit or failed(self._now(), message, self._reason or FAILED))
        await self._until_recorded("ended")

    async def _until_recorded(self, verb: Verb, outcome: Ended | None = None) -> None:
        """Write to the ledger, however long that fails: an instance whose end is not written is billed on."""
        delay = _FIRST_DELAY
        while True:
            try:
                self._record(verb, exit_=outcome)
            except OSError:
                log.exception("state of a failed instance could not be recorded", extra={"instance": self._known.id})
            else:
                return
            await asyncio.sleep(delay)
            delay = min(2 * delay, _MAX_DELAY)

    async def _is_done(self, work: Awaitable[None], failure: str) -> bool:
        try:
            await work
        except Exception:
            log.exception(failure, extra={"instance": self._known.id})
            return False
        return True

    def _set_alarm(self, at: float, reason: str) -> None:
        self._alarms.append(self._tasks.create_task(self._alarm(at - self._now(), reason)))

    async def _alarm(self, seconds: float, reason: str) -> None:
        await asyncio.sleep(seconds)
        await self.end(0.0, reason=reason)


def lost(now: float) -> Ended:
    """The exit of an instance whose machine did not outlive its account's process."""
    return Ended(code=_KILLED, reason=LOST, message="The machine of the simulated cloud went away.", ended=now)


def failed(now: float, message: str, reason: str = FAILED) -> Ended:
    """The exit of an instance that the simulated cloud could not run to its end."""
    return Ended(code=_START_ERROR, reason=reason, message=message, ended=now)


def _describe(failures: BaseExceptionGroup[Exception]) -> str:
    """Describe the first failure, however deep in task groups it happened."""
    first: BaseException = failures
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    if isinstance(first, ProviderError):
        return str(first)
    # Not the text of any exception: it could quote what a secret holds, and this sentence ends up in a claim.
    what = first.strerror if isinstance(first, OSError) and first.strerror else type(first).__name__
    return f"The simulated cloud failed ({what}): delete the pod and create it again; the agent's log has the details."
