"""Logs at the control plane: the live log of a V1 sandbox, and the stored logs of an App."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec
from modal_proto import api_pb2

from skysail.cloud.modal.stand_in.apps import AppStore
from skysail.cloud.modal.stand_in.dispatch import Call, Handler
from skysail.cloud.modal.stand_in.errors import invalid
from skysail.cloud.modal.stand_in.sandboxes import SandboxService
from skysail.cloud.modal.stand_in.stream_log import STDERR, STDOUT, Line

_STREAM_SECONDS = 55.0
_MAX_RANGE = 35 * 24 * 3600
_DEFAULT_LIMIT = 100


class LogRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One stored line, and the objects that it belongs to."""

    line: Line
    app_id: str
    task_id: str
    sandbox_id: str = ""
    function_id: str = ""
    function_call_id: str = ""
    input_id: str = ""


LogSource = Callable[[], Iterator[LogRecord]]


class LogService:
    """`sources` yield the stored lines of everything that has run."""

    def __init__(self, apps: AppStore, sandboxes: SandboxService) -> None:
        self._apps = apps
        self._sandboxes = sandboxes
        self.sources: list[LogSource] = [self._of_sandboxes]

    @property
    def handlers(self) -> dict[str, Handler]:
        return {
            "SandboxGetLogs": self._of_sandbox,
            "AppFetchLogs": self._fetch,
            "AppCountLogs": self._count,
        }

    async def _of_sandbox(
        self, request: api_pb2.SandboxGetLogsRequest, _: Call
    ) -> AsyncIterator[api_pb2.TaskLogsBatch]:
        sandbox = self._sandboxes.find(request.sandbox_id, 1)
        descriptor = int(request.file_descriptor)
        if descriptor not in {STDOUT, STDERR}:
            raise invalid(f"Unsupported file descriptor {descriptor}.")
        offset = int(request.last_entry_id.partition("-")[0] or 0)
        deadline = time.monotonic() + (request.timeout or _STREAM_SECONDS)
        log = sandbox.log
        while await log.until_bytes(descriptor, offset, max(deadline - time.monotonic(), 0.0)):
            async for start, data in log.read(descriptor, offset, 0.0):
                offset = start + len(data)
                item = api_pb2.TaskLogs(
                    data=data.decode(), timestamp=time.time(), file_descriptor=request.file_descriptor
                )
                yield api_pb2.TaskLogsBatch(task_id=sandbox.spec.task_id, entry_id=f"{offset}-0", items=[item])
            if log.has_ended and offset >= log.streams[descriptor].end:
                yield api_pb2.TaskLogsBatch(task_id=sandbox.spec.task_id, entry_id=f"{offset}-1", eof=True)
                return

    async def _fetch(self, request: api_pb2.AppFetchLogsRequest, _: Call) -> api_pb2.AppFetchLogsResponse:
        """Return the newest lines that match, oldest first."""
        found = sorted(self._matching(request), key=lambda record: record.line.at)
        batches = [batch(record) for record in found[-(request.limit or _DEFAULT_LIMIT) :]]
        return api_pb2.AppFetchLogsResponse(batches=batches)

    async def _count(self, request: api_pb2.AppCountLogsRequest, _: Call) -> api_pb2.AppCountLogsResponse:
        if request.bucket_secs < 1:
            raise invalid("bucket_secs must be at least 1.")
        counts: dict[int, Counter[int]] = {}
        for record in self._matching(request):
            start = int(record.line.at) // request.bucket_secs * request.bucket_secs
            counts.setdefault(start, Counter())[record.line.descriptor] += 1
        reply = api_pb2.AppCountLogsResponse(app_id=request.app_id)
        for start in sorted(counts):
            count = counts[start]
            system = sum(count.values()) - count[STDOUT] - count[STDERR]
            bucket = reply.buckets.add(stdout_logs=count[STDOUT], stderr_logs=count[STDERR], system_logs=system)
            bucket.bucket_start_at.seconds = start
        return reply

    def _matching(self, request: Any) -> Iterator[LogRecord]:
        self._apps.find(request.app_id)
        since, until = request.since.ToNanoseconds() / 1e9, request.until.ToNanoseconds() / 1e9
        if until - since > _MAX_RANGE:
            raise invalid("The range of logs is at most 35 days.")
        filters = ("task_id", "sandbox_id", "function_id", "function_call_id")
        wanted = {name: value for name in filters if (value := getattr(request, name))}
        for source in self.sources:
            for record in source():
                if (
                    record.app_id == request.app_id
                    and since <= record.line.at <= until
                    and (not request.source or request.source == record.line.descriptor)
                    and all(getattr(record, name) == value for name, value in wanted.items())
                    and request.search_text in record.line.text
                ):
                    yield record

    def _of_sandboxes(self) -> Iterator[LogRecord]:
        for sandbox in self._sandboxes.sandboxes.values():
            spec = sandbox.spec
            for line in list(sandbox.log.lines):
                yield LogRecord(line=line, app_id=spec.app_id, task_id=spec.task_id, sandbox_id=spec.id)


def batch(record: LogRecord, entry_id: str = "") -> api_pb2.TaskLogsBatch:
    descriptor: Any = record.line.descriptor
    item = api_pb2.TaskLogs(
        data=record.line.text,
        timestamp=record.line.at,
        timestamp_ns=int(record.line.at * 1e9),
        file_descriptor=descriptor,
        function_call_id=record.function_call_id,
        input_id=record.input_id,
    )
    return api_pb2.TaskLogsBatch(
        task_id=record.task_id,
        sandbox_id=record.sandbox_id,
        function_id=record.function_id,
        input_id=record.input_id,
        items=[item],
        entry_id=entry_id,
    )
