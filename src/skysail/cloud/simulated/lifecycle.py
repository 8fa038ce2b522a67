"""Lifecycle of one instance of a simulated cloud, from creation to end."""

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
    """Delays in seconds. `deadline` counts from the creation, `preempt` from the start."""

    start: float
    end: float
    deadline: float | None
    preempt: float | None
    lingers: bool


class LedgerWriter(Protocol):
    """Writes a row about the instance to the ledger."""

    def __call__(self, verb: Verb, *, exit_: Ended | None = None) -> None: ...


class InstanceLifecycle:
    """Runs one instance as one task. `previous` is its last state, as a reopened account finds it in the ledger."""

    def __init__(
        self, previous: Instance, program: Program, timing: Timing, *, record: LedgerWriter, now: Callable[[], float]
    ) -> None:
        self.program = program
        self.is_running = False
        self._instance = previous
        self._timing = timing
        self._record = record
        self._now = now
        # Kept apart from the ledger, to which writes may fail for a while.
        self._exit = previous.exit
        self._stop_requested = asyncio.Event()
        self._reason = ""
        self._grace = 0.0
        self._delay = timing.end
        self._timers: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Run the instance until its end is in the ledger, even if a step fails before that."""
        try:
            await self._run_to_end()
        except* Exception as failures:
            log.exception("simulated instance failed, ending it", extra={"instance": self._instance.id})
            await self._end_failed(_describe(failures))

    async def end(self, grace: float, *, reason: str = "", delay: float = 0.0) -> None:
        """Request the end. `reason` is set if the program did not end by itself. The shortest grace counts."""
        self._reason = self._reason or reason
        self._grace = grace
        self._delay = max(self._delay, delay)
        self.request_stop()
        if self.is_running:
            await self._stop_program()

    def request_stop(self) -> None:
        """Request the end: a running program is stopped at once, and a pending one never starts."""
        self._stop_requested.set()

    async def _run_to_end(self) -> None:
        async with asyncio.TaskGroup() as self._tasks:
            if self._timing.deadline is not None:
                self._set_timer(self._instance.created + self._timing.deadline, DEADLINE)
            work = self._tasks.create_task(self._work())
            stop = self._tasks.create_task(self._stop_requested.wait())
            await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
            if self.is_running:
                await self._stop_program()
                await asyncio.wait({work}, timeout=self._grace + _STOP_SECONDS)
            work.cancel()  # if the program was not started, lingers, or does not end
            await asyncio.wait({work})
            await self._end()
            for task in (stop, *self._timers):
                task.cancel()

    async def _stop_program(self) -> None:
        """Ask the program to end. A failure is only logged: `_run_to_end` ends the instance anyway."""
        await self._is_done(self.program.stop(self._grace), "simulated instance: program could not be stopped")

    async def _work(self) -> None:
        if self._instance.exit is None:
            self._exited(await self._outcome())
        if self._timing.lingers:
            await self._stop_requested.wait()

    async def _outcome(self) -> Ended:
        if self._instance.started is None:
            await asyncio.sleep(self._instance.created + self._timing.start - self._now())
            try:
                await self.program.start()
            except ProviderError as error:
                reason = error.reason if isinstance(error, Rejected) else "StartError"
                return Ended(code=_START_ERROR, reason=reason, message=str(error), ended=self._now())
            self._record("started")
        self.is_running = True
        if self._timing.preempt is not None:
            self._set_timer((self._instance.started or self._now()) + self._timing.preempt, PREEMPTED)
        outcome = await self.program.wait()
        self.is_running = False
        return outcome

    def _exited(self, outcome: Ended) -> None:
        if self._reason:
            outcome = msgspec.structs.replace(outcome, reason=self._reason)
        self._exit = outcome
        self._record("exited", exit_=outcome)
        self._instance = msgspec.structs.replace(self._instance, exit=outcome)

    async def _end(self) -> None:
        if self._instance.exit is None and (reason := self._missing_exit()):
            message = "The program of the instance did not report its end." if reason == FAILED else ""
            self._exited(Ended(code=_KILLED, reason=reason, message=message, ended=self._now()))
        await asyncio.sleep(self._delay)
        await self._release()
        self._record("ended")

    async def _release(self) -> None:
        async with asyncio.timeout(_RELEASE_SECONDS):
            await self.program.remove_sandbox()

    def _missing_exit(self) -> str:
        """Return the reason of an exit that the program did not report. Empty if stopped before the start."""
        return self._reason or (FAILED if self.is_running or not self._stop_requested.is_set() else "")

    async def _end_failed(self, message: str) -> None:
        """End an instance whose task failed: release its sandbox and stop billing."""
        self.is_running = False
        for _ in range(_MAX_RELEASES):
            if await self._is_done(self._release(), "simulated instance: sandbox could not be released"):
                break
            await asyncio.sleep(_FIRST_DELAY)
        if self._instance.exit is None:
            await self._until_recorded("exited", self._exit or failed(self._now(), message, self._reason or FAILED))
        await self._until_recorded("ended")

    async def _until_recorded(self, verb: Verb, outcome: Ended | None = None) -> None:
        """Write to the ledger, retrying until it succeeds: an instance without a recorded end stays billed."""
        delay = _FIRST_DELAY
        while True:
            try:
                self._record(verb, exit_=outcome)
            except OSError:
                log.exception(
                    "simulated instance: state could not be recorded, retrying", extra={"instance": self._instance.id}
                )
            else:
                return
            await asyncio.sleep(delay)
            delay = min(2 * delay, _MAX_DELAY)

    async def _is_done(self, work: Awaitable[None], failure: str) -> bool:
        try:
            await work
        except Exception:
            log.exception(failure, extra={"instance": self._instance.id})
            return False
        return True

    def _set_timer(self, at: float, reason: str) -> None:
        self._timers.append(self._tasks.create_task(self._end_after(at - self._now(), reason)))

    async def _end_after(self, seconds: float, reason: str) -> None:
        await asyncio.sleep(seconds)
        await self.end(0.0, reason=reason)


def lost(now: float) -> Ended:
    """Return the exit of an instance that was lost with its account's process."""
    return Ended(code=_KILLED, reason=LOST, message="The simulated cloud restarted and lost the instance.", ended=now)


def failed(now: float, message: str, reason: str = FAILED) -> Ended:
    """Return the exit of an instance that the simulated cloud failed to run."""
    return Ended(code=_START_ERROR, reason=reason, message=message, ended=now)


def _describe(failures: BaseExceptionGroup[Exception]) -> str:
    """Describe the first failure, at any depth of task groups."""
    first: BaseException = failures
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    if isinstance(first, ProviderError):
        return str(first)
    # Never the text of other exceptions: it could quote a secret, and this message ends up in a claim.
    cause = first.strerror if isinstance(first, OSError) and first.strerror else type(first).__name__
    return f"The simulated cloud failed ({cause}): delete the pod and create it again; see the agent's log for details."
