"""One sandbox from its creation to its end: scheduled, run through the provider, and ended once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from modal_proto import api_pb2

from skysail.cloud.errors import ProviderError
from skysail.cloud.modal.stand_in.accounting import Accounting
from skysail.cloud.modal.stand_in.changes import Changes
from skysail.cloud.modal.stand_in.faults import Fault, FaultKind
from skysail.cloud.modal.stand_in.stream_log import STDERR, STDOUT, StreamLog
from skysail.cloud.provider import LOST, Ended
from skysail.cloud.simulated.programs import ProviderProgram

Result = api_pb2.GenericResult
_KILLED = 137
_TIMED_OUT = 124
_INIT_FAILED = 128

log = logging.getLogger(__name__)


class SandboxSpec(msgspec.Struct, frozen=True, kw_only=True):
    """`version` is the back end. `visible_at` is the time from which listings show the sandbox."""

    id: str
    version: int
    task_id: str
    app_id: str
    created: float
    visible_at: float
    definition: Any
    delay: float = 0.0
    faults: tuple[Fault, ...] = ()

    @property
    def name(self) -> str:
        return str(self.definition.name)

    def fault(self, kind: FaultKind) -> Fault | None:
        return next((fault for fault in self.faults if fault.kind == kind), None)


class Sandbox:
    """Runs the program of one sandbox. `result` is None until it has ended and its log is complete."""

    def __init__(
        self, spec: SandboxSpec, program: ProviderProgram, accounting: Accounting, now: Callable[[], float]
    ) -> None:
        self.spec = spec
        self.program = program
        self.tags: dict[str, str] = {}
        self.log = StreamLog(is_text=spec.version == 1)
        self.result: Result | None = None
        self.is_scheduled = False
        self.started: float | None = None
        self.ended: float | None = None
        self.ready_at: float | None = None
        self.changes = Changes()
        self._accounting = accounting
        self._now = now
        self._forced: Result | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._on_end: Callable[[], None] = lambda: None

    @property
    def is_running(self) -> bool:
        return self.result is None

    def launch(self, on_end: Callable[[], None]) -> None:
        """Start the sandbox. `on_end` is called when it has ended."""
        self._on_end = on_end
        self._create(self._run()).add_done_callback(self._concluded)

    async def until_ended(self, seconds: float) -> None:
        await self.changes.until(lambda: self.result is not None, seconds)

    async def until_started(self) -> bool:
        """Wait until the program runs. Returns False if it never will."""
        await self.changes.until(lambda: self.started is not None or self.result is not None)
        return self.started is not None

    async def end(self, status: Any, message: str, code: int = _KILLED) -> None:
        """End the sandbox for a reason of the service. The first reason counts."""
        if self.result is not None or self._forced is not None:
            return
        self._forced = Result(status=status, exitcode=code, exception=message)
        self.changes.notify()
        if self.started is not None:
            await self.program.stop(0.0)

    async def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self) -> None:
        try:
            result = await self._outcome()
        finally:
            for timer in self._timers:
                timer.cancel()
        self.log.end(self._now())
        self._accounting.record(self.spec.id, "exited", exit_=self._exit(result))
        await self.program.remove_sandbox()
        self._conclude(result)

    async def _outcome(self) -> Result:
        if not await self._is_scheduled():
            return self._forced or Result(status=Result.GENERIC_STATUS_TERMINATED)
        if self.spec.fault("init-failure"):
            return Result(
                status=Result.GENERIC_STATUS_INIT_FAILURE,
                exitcode=_INIT_FAILED,
                exception="The container did not start.",
            )
        try:
            await self.program.start()
        except ProviderError as error:
            return Result(status=Result.GENERIC_STATUS_INIT_FAILURE, exitcode=_INIT_FAILED, exception=str(error))
        copying = self._create(self._copy_output())
        self._begin()
        if self._forced is not None:
            await self.program.stop(0.0)
        ended = await self.program.wait()
        await asyncio.wait({copying})
        return self._forced or _result(ended)

    async def _is_scheduled(self) -> bool:
        """Wait for capacity. Returns False if the sandbox is ended before."""
        fault = self.spec.fault("no-capacity")
        delay = self.spec.delay if fault is None else fault.seconds or None
        if await self.changes.until(lambda: self._forced is not None, delay):
            return False
        self.is_scheduled = True
        self.changes.notify()
        return True

    def _begin(self) -> None:
        self.started = self._now()
        self._accounting.record(self.spec.id, "started")
        self._end_after(
            self.spec.definition.timeout_secs, Result.GENERIC_STATUS_TIMEOUT, "Sandbox timed out.", _TIMED_OUT
        )
        if fault := self.spec.fault("preempted"):
            self._end_after(fault.seconds, Result.GENERIC_STATUS_TERMINATED, "The container was preempted.")
        if fault := self.spec.fault("out-of-memory"):
            self._end_after(fault.seconds, Result.GENERIC_STATUS_KERNEL_OOM_KILL, "Killed: out of memory.")
        self.changes.notify()

    def _end_after(self, seconds: float, status: Any, message: str, code: int = _KILLED) -> None:
        def end() -> None:
            self._create(self.end(status, message, code))

        self._timers.append(asyncio.get_running_loop().call_later(seconds, end))

    async def _copy_output(self) -> None:
        async for piece in self.program.output():
            self.log.put(STDOUT if piece.stream == "stdout" else STDERR, piece.at, piece.data)

    def _create(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _concluded(self, task: asyncio.Task[None]) -> None:
        """End the bill of a sandbox whose own task failed."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.error("stand-in sandbox failed, ended", extra={"sandbox": self.spec.id}, exc_info=error)
        self.log.end(self._now())
        self._conclude(
            Result(status=Result.GENERIC_STATUS_INTERNAL_FAILURE, exitcode=_KILLED, exception="Internal failure.")
        )

    def _conclude(self, result: Result) -> None:
        self.ended = self._now()
        self._accounting.record(self.spec.id, "ended")
        self.result = result
        self._on_end()
        self.changes.notify()

    def _exit(self, result: Result) -> Ended:
        reason = Result.GenericStatus.Name(result.status).removeprefix("GENERIC_STATUS_")
        return Ended(
            code=result.exitcode, reason=reason, message=result.exception, started=self.started, ended=self._now()
        )


def _result(ended: Ended) -> Result:
    """Return the result of a program that ended by itself."""
    if ended.reason == "OOMKilled":
        return Result(status=Result.GENERIC_STATUS_KERNEL_OOM_KILL, exitcode=ended.code, exception="Out of memory.")
    if ended.reason == "StartError":
        return Result(status=Result.GENERIC_STATUS_INIT_FAILURE, exitcode=ended.code, exception=ended.message)
    if ended.reason == LOST:
        return Result(status=Result.GENERIC_STATUS_INTERNAL_FAILURE, exitcode=ended.code, exception=ended.message)
    status = Result.GENERIC_STATUS_SUCCESS if ended.code == 0 else Result.GENERIC_STATUS_FAILURE
    return Result(status=status, exitcode=ended.code)
