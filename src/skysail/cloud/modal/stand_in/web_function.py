"""One web Function: a queue of requests, and an autoscaler that starts and ends containers.

What the service does when containers cannot start is not documented. Here the waiting requests fail, and the next
container is started after a pause that grows.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import msgspec
from modal_proto import api_pb2

from skysail.cloud.errors import ProviderError
from skysail.cloud.modal.stand_in import ids
from skysail.cloud.modal.stand_in.accounting import CLAIM, Accounting
from skysail.cloud.modal.stand_in.changes import Changes
from skysail.cloud.modal.stand_in.container_specs import MakeSpec
from skysail.cloud.modal.stand_in.dispatch import Dispatcher, Handler
from skysail.cloud.modal.stand_in.stream_log import Line
from skysail.cloud.modal.stand_in.web_call import Result, WebCall
from skysail.cloud.modal.stand_in.web_container import WebContainer
from skysail.cloud.provider import Ended, Provider

_TAKE_SECONDS = 40.0
_LOOK_SECONDS = 0.5
_DEFAULT_SCALEDOWN = 60.0
_MIN_PAUSE, _MAX_PAUSE = 0.5, 30.0
_MAX_LIFETIME = 24 * 3600.0
_KILLED, _START_FAILED = 137, 128

log = logging.getLogger(__name__)


class WebDependencies(msgspec.Struct, frozen=True, kw_only=True):
    """`may_start`: whether the workspace has room for one more container."""

    provider: Provider
    accounting: Accounting
    now: Callable[[], float]
    dispatcher: Callable[[dict[str, Handler]], Dispatcher]
    record_line: Callable[[str, str, str, Line], None]
    may_start: Callable[[], bool]
    folder: Path


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One deployment of the Function. `tags` are those of its App, `usd` the price of a container per hour."""

    number: int
    make: MakeSpec
    definition: api_pb2.Function
    tags: Mapping[str, str]
    usd: float

    @property
    def concurrency(self) -> int:
        """Return the number of requests for which a container is enough."""
        found = self.definition
        return max(1, found.target_concurrent_inputs or found.max_concurrent_inputs)


class WebFunction:
    """`settings` are those of the last deployment, or an override of them."""

    def __init__(self, function_id: str, app_id: str, version: Version, deps: WebDependencies) -> None:
        self.function_id = function_id
        self.app_id = app_id
        self.containers: list[WebContainer] = []
        self.is_stopped = False
        self._deps = deps
        self._version = version
        self.settings = _copy(version.definition.autoscaler_settings)
        self._queue: deque[WebCall] = deque()
        self._changes = Changes()
        self._failures = 0
        self._next_start = 0.0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._create(self._scale())

    @property
    def webhook(self) -> api_pb2.WebhookConfig:
        return self._version.definition.webhook_config

    def publish(self, version: Version) -> None:
        """Serve all further requests by containers of this version. Older ones finish their requests and leave."""
        self._version = version
        self.settings = _copy(version.definition.autoscaler_settings)
        self._failures, self._next_start = 0, 0.0
        for container in self.containers:
            container.is_leaving = True
        self._changes.notify()

    def update(self, settings: api_pb2.AutoscalerSettings) -> api_pb2.AutoscalerSettings:
        self.settings.MergeFrom(settings)
        self._changes.notify()
        return self.settings

    def submit(self, call: WebCall) -> None:
        self._queue.append(call)
        self._changes.notify()

    def stats(self) -> api_pb2.FunctionStats:
        return api_pb2.FunctionStats(
            backlog=len(self._queue),
            num_total_tasks=len(self.containers),
            num_running_inputs=sum(len(container.calls) for container in self.containers),
        )

    async def take(self, container: WebContainer) -> WebCall | None:
        """Wait for a request for this container. Returns None if there is none for a while, or if it has to leave."""
        await self._changes.until(lambda: container.is_leaving or bool(self._queue), _TAKE_SECONDS)
        if container.is_leaving or not self._queue:
            return None
        call = self._queue.popleft()
        container.calls[call.function_call_id] = call
        timeout = float(self._version.definition.timeout_secs)
        asyncio.get_running_loop().call_later(timeout, self._time_out, container, call)
        return call

    def changed(self) -> None:
        self._changes.notify()

    async def stop(self) -> None:
        """End all containers and requests."""
        self.is_stopped = True
        self._fail_queue("The App is stopped.")
        await asyncio.gather(*(container.kill() for container in self.containers))
        await self._changes.until(lambda: not self.containers)
        await self.close()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _scale(self) -> None:
        while not self.is_stopped:
            staying = [container for container in self.containers if not container.is_leaving]
            needed = self._needed()
            for _ in range(len(staying), needed):
                if self._deps.now() >= self._next_start and self._deps.may_start():
                    self._start()
            self._scale_down(staying, needed)
            delay = _LOOK_SECONDS if self.containers or needed else None
            await self._changes.until(lambda: self._needed() != needed, delay)  # noqa: B023

    def _needed(self) -> int:
        staying = [container for container in self.containers if not container.is_leaving]
        requests = len(self._queue) + sum(len(container.calls) for container in staying)
        needed = math.ceil(requests / self._version.concurrency)
        limit = self.settings.max_containers or math.inf
        return int(min(max(needed, self.settings.min_containers), limit))

    def _scale_down(self, staying: list[WebContainer], needed: int) -> None:
        window = self.settings.scaledown_window or _DEFAULT_SCALEDOWN
        surplus = len(staying) - needed
        limit = self.settings.max_containers or math.inf
        for container in staying[::-1]:
            is_idle = container.is_ready and not container.calls and self._deps.now() - container.idle_since > window
            if surplus > 0 and (is_idle or len(staying) > limit):
                container.is_leaving = True
                surplus -= 1
                self._changes.notify()

    def _start(self) -> None:
        task_id = ids.task_id(1)
        version = self._version
        spec = version.make(task_id, 0, self._deps.folder / task_id)
        container = WebContainer(spec, self._deps.provider, self, self._deps.now, version=version.number)
        self.containers.append(container)
        # Each container is billed on its own, so a claim has several instances.
        owner = {**version.tags, CLAIM: f"{claim}:{task_id}"} if (claim := version.tags.get(CLAIM)) else version.tags
        note = f"{version.definition.function_name} {version.number}"
        self._deps.accounting.begin(task_id, owner, usd=version.usd, seconds=_MAX_LIFETIME, regions=[], note=note)
        self._create(self._run(container))

    async def _run(self, container: WebContainer) -> None:
        """Run a container to its end."""
        task_id, accounting = container.spec.task_id, self._deps.accounting
        ended = Ended(code=_KILLED, reason="Error", message="The container was removed.", ended=self._deps.now())
        try:
            await container.start(self._deps.dispatcher(container.handlers))
            accounting.record(task_id, "started")
            self._create(self._copy_output(container))
            ended = await container.wait()
        except ProviderError as error:
            ended = Ended(code=_START_FAILED, reason="StartError", message=str(error), ended=self._deps.now())
        finally:
            self.containers.remove(container)
            accounting.record(task_id, "exited", exit_=ended)
            accounting.record(task_id, "ended")
            await container.remove()
            self._end_calls(container, ended)
            self._changes.notify()

    def _end_calls(self, container: WebContainer, ended: Ended) -> None:
        """Queue the requests of a lost container again, as the service does with preempted inputs."""
        for call in container.calls.values():
            if call.can_retry and not self.is_stopped:
                self._queue.appendleft(call)
            else:
                message = f"The container ended with exit code {ended.code}."
                call.finish(Result(status=Result.GENERIC_STATUS_FAILURE, exception=message))
        if container.is_ready:
            self._failures = 0
        elif not self.is_stopped and container.version == self._version.number:
            pause = min(_MIN_PAUSE * 2**self._failures, _MAX_PAUSE)
            self._failures, self._next_start = self._failures + 1, self._deps.now() + pause
            reported = container.failure.exception if container.failure else ended.message
            self._fail_queue(f"The container could not start: {reported or f'exit code {ended.code}'}")

    def _fail_queue(self, message: str) -> None:
        while self._queue:
            self._queue.popleft().finish(Result(status=Result.GENERIC_STATUS_INIT_FAILURE, exception=message))

    def _time_out(self, container: WebContainer, call: WebCall) -> None:
        if call.result is None and call.function_call_id in container.calls:
            call.finish(Result(status=Result.GENERIC_STATUS_TIMEOUT, exception="The request timed out."))
            container.cancel_input(call.input_id)

    async def _copy_output(self, container: WebContainer) -> None:
        async for line in container.lines():
            self._deps.record_line(self.app_id, self.function_id, container.spec.task_id, line)

    def _create(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("stand-in web function failed", extra={"function": self.function_id}, exc_info=error)


def _copy(settings: api_pb2.AutoscalerSettings) -> api_pb2.AutoscalerSettings:
    copied = api_pb2.AutoscalerSettings()
    copied.CopyFrom(settings)
    return copied
