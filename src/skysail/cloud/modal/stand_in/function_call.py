"""One call of a Function: its containers, started together, and its result.

Only the output of rank 0 is the result. What the service does when a rank is lost is not documented; here the call
fails and all ranks are ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
from modal_proto import api_pb2

from skysail.cloud.errors import ProviderError
from skysail.cloud.modal.stand_in import ids
from skysail.cloud.modal.stand_in.accounting import Accounting
from skysail.cloud.modal.stand_in.changes import Changes
from skysail.cloud.modal.stand_in.container import CallContainer, ContainerSpec
from skysail.cloud.modal.stand_in.dispatch import Dispatcher, Handler
from skysail.cloud.modal.stand_in.faults import Fault, FaultKind
from skysail.cloud.modal.stand_in.stream_log import Line
from skysail.cloud.provider import Ended, Provider

Result = api_pb2.GenericResult
_GRACE_SECONDS = 10.0
_KILLED = 137

log = logging.getLogger(__name__)


class CallDependencies(msgspec.Struct, frozen=True, kw_only=True):
    """`dispatcher` makes the worker's service of a container. `record_line` stores a line of a container."""

    provider: Provider
    accounting: Accounting
    now: Callable[[], float]
    dispatcher: Callable[[dict[str, Handler]], Dispatcher]
    record_line: Callable[[FunctionCall, str, Line], None]
    folder: Path


class CallSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Description of a call. `make` describes the container of a task id and a rank, whose socket is in a folder."""

    function_id: str
    app_id: str
    input: Any
    make: Callable[[str, int, Path], ContainerSpec]
    size: int
    timeout: float
    faults: tuple[Fault, ...]


class FunctionCall:
    """Runs the containers of one call, again if the service preempts them, until the call has a result."""

    def __init__(self, spec: CallSpec, deps: CallDependencies) -> None:
        self.function_call_id = ids.identifier("fc")
        self.input_id = ids.identifier("in")
        self.function_id = spec.function_id
        self.app_id = spec.app_id
        self.input = spec.input
        self.created = deps.now()
        self.cluster_ids: list[str] = []
        self.containers: list[CallContainer] = []
        self.result: api_pb2.GenericResult | None = None
        self.data_format = 0
        self.has_ended = False
        self.changes = Changes()
        self._make = spec.make
        self._deps = deps
        self._size = spec.size
        self._timeout = spec.timeout
        self._faults = spec.faults
        self._addresses: dict[int, str] = {}
        self._is_preempted = False
        self._tasks: set[asyncio.Task[Any]] = set()

    def launch(self) -> None:
        self._create(self._run()).add_done_callback(self._concluded)

    def finish(self, result: api_pb2.GenericResult, data_format: int = 0) -> None:
        """Set the result. The first one counts."""
        if self.result is None:
            self.result, self.data_format = result, data_format
            self.changes.notify()

    def cancel(self, *, terminates_containers: bool) -> None:
        """Cancel the call. Containers learn it by their heartbeat, or are interrupted and ended."""
        self.finish(Result(status=Result.GENERIC_STATUS_TERMINATED, exception="The call was cancelled."))
        if terminates_containers:
            self._create(self._take_away(self.containers))
            return
        for container in self.containers:
            container.cancel_input(self.input_id)

    def preempt(self) -> None:
        """Take the containers away. New ones then get the same input."""
        self._is_preempted = True
        self._create(self._take_away(self.containers))

    async def end(self, message: str) -> None:
        """End the call and all its containers at once."""
        self.finish(Result(status=Result.GENERIC_STATUS_TERMINATED, exception=message))
        await self._kill_all()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def join(self, rank: int, address: str) -> api_pb2.TaskClusterHelloResponse:
        self._addresses[rank] = address
        self.changes.notify()
        await self.changes.until(lambda: len(self._addresses) == self._size)
        addresses = [self._addresses[number] for number in range(self._size)]
        return api_pb2.TaskClusterHelloResponse(
            cluster_id=self.cluster_ids[-1],
            cluster_rank=rank,
            container_ips=addresses,
            container_ipv4_ips=[address.removeprefix("::ffff:") for address in addresses],
        )

    def put_output(self, rank: int, output: api_pb2.FunctionPutOutputsItem) -> None:
        if rank == 0:
            self.finish(output.result, output.data_format)

    async def _run(self) -> None:
        if await self._is_scheduled():
            is_again = True
            while is_again and self.result is None:
                await self._attempt()
                is_again, self._is_preempted = self._is_preempted, False
        assert self.result is not None, "a call without containers has a result"
        self._deps.accounting.record(self.function_call_id, "exited", exit_=self._exit(self.result))
        self._conclude()

    async def _is_scheduled(self) -> bool:
        """Wait for capacity. Returns False if the call is cancelled before."""
        fault = self._fault("no-capacity")
        delay = 0.0 if fault is None else fault.seconds or None
        return not await self.changes.until(lambda: self.result is not None, delay)

    async def _attempt(self) -> None:
        """Run one set of containers to its end."""
        self._addresses.clear()
        self.cluster_ids.append(ids.identifier("cu"))
        specs = [self._spec(rank) for rank in range(self._size)]
        current = [CallContainer(spec, self._deps.provider, self, self._deps.now) for spec in specs]
        self.containers = current
        timers: list[asyncio.TimerHandle] = []
        try:
            if await self._is_started(current):
                timers = self._set_timers(is_first=len(self.cluster_ids) == 1)
                await asyncio.gather(*(self._follow(container) for container in current))
        finally:
            for timer in timers:
                timer.cancel()
            await asyncio.gather(*(container.remove() for container in current))

    async def _is_started(self, current: list[CallContainer]) -> bool:
        starts = (container.start(self._deps.dispatcher(container.handlers)) for container in current)
        errors = [error for error in await asyncio.gather(*starts, return_exceptions=True) if error is not None]
        for error in errors:
            if not isinstance(error, ProviderError):
                raise error
            self.finish(Result(status=Result.GENERIC_STATUS_INIT_FAILURE, exitcode=128, exception=str(error)))
        if not errors and len(self.cluster_ids) == 1:
            self._deps.accounting.record(self.function_call_id, "started")
        return not errors

    def _set_timers(self, *, is_first: bool) -> list[asyncio.TimerHandle]:
        loop = asyncio.get_running_loop()
        timers = []
        if self._timeout:
            timers.append(loop.call_later(self._timeout, self._time_out))
        if is_first and (fault := self._fault("preempted")):
            timers.append(loop.call_later(fault.seconds, self.preempt))
        return timers

    def _time_out(self) -> None:
        message = f"The input timed out after {self._timeout:.0f} seconds."
        self.finish(Result(status=Result.GENERIC_STATUS_TIMEOUT, exitcode=124, exception=message))
        self._create(self._kill_all())

    async def _follow(self, container: CallContainer) -> None:
        copying = self._create(self._copy_output(container))
        ended = await container.wait()
        await asyncio.wait({copying})
        if self._is_preempted:
            return
        if container.output is None:
            rank = container.spec.rank
            message = f"Container {rank} ended with exit code {ended.code} and no output."
            lost = Result(status=Result.GENERIC_STATUS_FAILURE, exitcode=ended.code, exception=message)
            self.finish(container.failure or lost)
            await self._kill_all()
        elif container.spec.rank == 0:
            self._create(self._kill_later())

    async def _copy_output(self, container: CallContainer) -> None:
        async for line in container.lines():
            self._deps.record_line(self, container.spec.task_id, line)

    async def _take_away(self, containers: list[CallContainer]) -> None:
        """Interrupt containers, and kill them after a while."""
        await asyncio.gather(*(container.interrupt() for container in containers))
        await self.changes.until(lambda: self.has_ended, _GRACE_SECONDS)
        await asyncio.gather(*(container.kill() for container in containers))

    async def _kill_later(self) -> None:
        """End the other ranks a while after rank 0 has given the result."""
        await self.changes.until(lambda: self.has_ended, _GRACE_SECONDS)
        await self._kill_all()

    async def _kill_all(self) -> None:
        await asyncio.gather(*(container.kill() for container in self.containers))

    def _spec(self, rank: int) -> ContainerSpec:
        task_id = ids.task_id(1)
        return self._make(task_id, rank, self._deps.folder / task_id)

    def _fault(self, kind: FaultKind) -> Fault | None:
        return next((fault for fault in self._faults if fault.kind == kind), None)

    def _create(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _concluded(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.error("stand-in call failed, ended", extra={"call": self.function_call_id}, exc_info=error)
        self.finish(Result(status=Result.GENERIC_STATUS_INTERNAL_FAILURE, exception="Internal failure."))
        self._conclude()

    def _conclude(self) -> None:
        self._deps.accounting.record(self.function_call_id, "ended")
        self.has_ended = True
        self.changes.notify()

    def _exit(self, result: api_pb2.GenericResult) -> Ended:
        reason = Result.GenericStatus.Name(result.status).removeprefix("GENERIC_STATUS_")
        code = 0 if result.status == Result.GENERIC_STATUS_SUCCESS else result.exitcode or _KILLED
        return Ended(code=code, reason=reason, message=result.exception, ended=self._deps.now())
