"""Calls of Functions at the control plane: spawned, observed by their log and their call graph, and cancelled."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from google.protobuf.empty_pb2 import Empty
from modal_proto import api_pb2

from skysail.cloud.modal.stand_in import prices
from skysail.cloud.modal.stand_in.accounting import Accounting
from skysail.cloud.modal.stand_in.apps import App, AppStore
from skysail.cloud.modal.stand_in.changes import Changes
from skysail.cloud.modal.stand_in.container import FunctionContainer
from skysail.cloud.modal.stand_in.container_specs import ContainerSpecs
from skysail.cloud.modal.stand_in.dispatch import Call, Dispatcher, Handler
from skysail.cloud.modal.stand_in.errors import conflict, invalid, not_found
from skysail.cloud.modal.stand_in.function_call import CallDependencies, CallSpec, FunctionCall
from skysail.cloud.modal.stand_in.functions import FunctionStore, group_size
from skysail.cloud.modal.stand_in.logs import LogRecord, batch
from skysail.cloud.modal.stand_in.sandbox import Result
from skysail.cloud.modal.stand_in.stream_log import Line
from skysail.cloud.provider import Provider

_STREAM_SECONDS = 55.0
_COUNTERS = {
    Result.GENERIC_STATUS_SUCCESS: "succeeded_inputs",
    Result.GENERIC_STATUS_TERMINATED: "cancelled_inputs",
    Result.GENERIC_STATUS_TIMEOUT: "timeout_inputs",
}


class CallServiceDependencies(msgspec.Struct, frozen=True, kw_only=True):
    apps: AppStore
    functions: FunctionStore
    specs: ContainerSpecs
    provider: Provider
    accounting: Accounting
    dispatcher: Callable[[dict[str, Handler]], Dispatcher]
    folder: Path


class CallService:
    """All calls of the account, also those that have ended."""

    def __init__(self, deps: CallServiceDependencies) -> None:
        self.calls: dict[str, FunctionCall] = {}
        # Containers that belong to no call, with the id of their App.
        self.other_containers: list[Callable[[], Iterator[tuple[str, FunctionContainer]]]] = []
        self._records: list[LogRecord] = []
        self._changes = Changes()
        self._deps = deps
        self._call_deps = CallDependencies(
            provider=deps.provider,
            accounting=deps.accounting,
            now=time.time,
            dispatcher=deps.dispatcher,
            record_line=self._record_line,
            folder=deps.folder,
        )
        deps.apps.on_stop.append(self._end_all)

    @property
    def handlers(self) -> dict[str, Handler]:
        return {
            "FunctionMap": self._map,
            "FunctionCallFromId": self._from_id,
            "FunctionCallGetInfo": self._info,
            "FunctionGetCallGraph": self._graph,
            "FunctionGetOutputs": self._outputs,
            "FunctionCallCancel": self._cancel,
            "ClusterGet": self._cluster,
            "AppGetLogs": self._logs,
            "TaskList": self._task_list,
            "TaskGetInfo": self._task_info,
            "ContainerStop": self._stop_container,
        }

    def records(self) -> Iterator[LogRecord]:
        """Yield the stored lines of all calls."""
        yield from list(self._records)

    def add_record(self, record: LogRecord) -> None:
        self._records.append(record)
        self._changes.notify()

    async def close(self) -> None:
        for call in self.calls.values():
            await call.close()

    async def _map(self, request: api_pb2.FunctionMapRequest, rpc: Call) -> api_pb2.FunctionMapResponse:
        stored = self._deps.functions.find(request.function_id)
        definition = stored.definition
        if definition is None:
            raise conflict(f"Function {request.function_id} is not deployed.")
        if len(request.pipelined_inputs) != 1:
            raise invalid("The stand-in takes calls with one input.")
        app = self._deps.apps.live(stored.app_id)
        size = max(1, group_size(definition))
        spec = CallSpec(
            function_id=stored.id,
            app_id=app.id,
            input=request.pipelined_inputs[0].input,
            make=self._deps.specs.maker(stored, app),
            size=size,
            timeout=float(definition.timeout_secs),
            faults=rpc.faults,
        )
        call = FunctionCall(spec, self._call_deps)
        regions = list(definition.scheduler_placement.regions)
        usd = round(size * prices.usd_per_hour(definition.resources, regions, is_sandbox=False), 6)
        self._deps.accounting.begin(
            call.function_call_id,
            app.tags,
            usd=usd,
            seconds=float(definition.timeout_secs),
            regions=regions,
            note=f"{app.name} {stored.name}",
        )
        self.calls[call.function_call_id] = call
        call.launch()
        item = api_pb2.FunctionPutInputsResponseItem(idx=0, input_id=call.input_id, input_jwt=call.input_id)
        return api_pb2.FunctionMapResponse(
            function_call_id=call.function_call_id, function_call_jwt=call.function_call_id, pipelined_inputs=[item]
        )

    async def _from_id(self, request: api_pb2.FunctionCallFromIdRequest, _: Call) -> api_pb2.FunctionCallFromIdResponse:
        call = self._find(request.function_call_id)
        metadata = api_pb2.FunctionCallHandleMetadata(app_id=call.app_id, function_id=call.function_id)
        return api_pb2.FunctionCallFromIdResponse(
            function_call_id=call.function_call_id, num_inputs=1, metadata=metadata
        )

    async def _info(self, request: api_pb2.FunctionCallGetInfoRequest, _: Call) -> api_pb2.FunctionCallGetInfoResponse:
        call = self._find(request.function_call_id)
        info = api_pb2.FunctionCallInfo(function_call_id=call.function_call_id, created_at=call.created, total_inputs=1)
        name = "pending_inputs" if call.result is None else _COUNTERS.get(call.result.status, "failed_inputs")
        getattr(info, name).total = 1
        return api_pb2.FunctionCallGetInfoResponse(info=info)

    async def _graph(
        self, request: api_pb2.FunctionGetCallGraphRequest, _: Call
    ) -> api_pb2.FunctionGetCallGraphResponse:
        call = self._find(request.function_call_id)
        stored = self._deps.functions.stored(call.function_id)
        module = stored.definition.module_name if stored.definition else ""
        reply = api_pb2.FunctionGetCallGraphResponse()
        reply.function_calls.add(function_call_id=call.function_call_id, function_name=stored.name, module_name=module)
        reply.inputs.add(
            input_id=call.input_id,
            function_call_id=call.function_call_id,
            task_id=call.containers[0].spec.task_id if call.containers else "",
            status=call.result.status if call.result else Result.GENERIC_STATUS_UNSPECIFIED,
        )
        return reply

    async def _outputs(self, request: api_pb2.FunctionGetOutputsRequest, _: Call) -> api_pb2.FunctionGetOutputsResponse:
        call = self._find(request.function_call_id)
        await call.changes.until(lambda: call.result is not None, request.timeout)
        reply = api_pb2.FunctionGetOutputsResponse(num_unfinished_inputs=int(call.result is None))
        if call.result is not None:
            data_format: Any = call.data_format
            reply.outputs.add(result=call.result, idx=0, input_id=call.input_id, data_format=data_format)
        return reply

    async def _cancel(self, request: api_pb2.FunctionCallCancelRequest, _: Call) -> Empty:
        call = self._find(request.function_call_id)
        self._deps.accounting.record(call.function_call_id, "end asked")
        call.cancel(terminates_containers=request.terminate_containers)
        return Empty()

    async def _cluster(self, request: api_pb2.ClusterGetRequest, _: Call) -> api_pb2.ClusterGetResponse:
        for call in self.calls.values():
            if call.cluster_ids and call.cluster_ids[-1] == request.cluster_id:
                stats = api_pb2.ClusterStats(
                    app_id=call.app_id,
                    cluster_id=request.cluster_id,
                    started_at=call.created,
                    task_ids=[container.spec.task_id for container in call.containers],
                )
                return api_pb2.ClusterGetResponse(cluster=stats)
        raise not_found(f"Cluster {request.cluster_id}")

    async def _logs(self, request: api_pb2.AppGetLogsRequest, _: Call) -> AsyncIterator[api_pb2.TaskLogsBatch]:
        """Stream the lines of calls, from the beginning or after the last entry that the client has."""
        self._deps.apps.find(request.app_id)
        sent = int(request.last_entry_id.partition("-")[0] or 0)
        deadline = time.monotonic() + (request.timeout or _STREAM_SECONDS)
        while await self._until_more(sent, max(deadline - time.monotonic(), 0.0)):
            for record in self._records[sent:]:
                sent += 1
                if _matches(record, request):
                    yield batch(record, entry_id=f"{sent}-0")

    async def _until_more(self, sent: int, seconds: float) -> bool:
        return await self._changes.until(lambda: len(self._records) > sent, seconds)

    async def _task_list(self, request: api_pb2.TaskListRequest, _: Call) -> api_pb2.TaskListResponse:
        reply = api_pb2.TaskListResponse()
        for app_id, container in self._running():
            if not request.app_id or app_id == request.app_id:
                reply.tasks.add(
                    task_id=container.spec.task_id,
                    app_id=app_id,
                    app_description=self._deps.apps.find(app_id).name,
                    started_at=container.started or 0.0,
                )
        return reply

    async def _task_info(self, request: api_pb2.TaskGetInfoRequest, _: Call) -> api_pb2.TaskGetInfoResponse:
        ended = ((call.app_id, container) for call in self.calls.values() for container in call.containers)
        for app_id, container in (*ended, *self._running()):
            if container.spec.task_id == request.task_id:
                info = api_pb2.TaskInfo(
                    id=request.task_id, started_at=container.started or 0.0, finished_at=container.ended or 0.0
                )
                return api_pb2.TaskGetInfoResponse(app_id=app_id, info=info)
        raise not_found(f"Task {request.task_id}")

    async def _stop_container(self, request: api_pb2.ContainerStopRequest, _: Call) -> api_pb2.ContainerStopResponse:
        for _app_id, container in self._running():
            if container.spec.task_id == request.task_id:
                await container.kill()
                return api_pb2.ContainerStopResponse()
        raise not_found(f"Container {request.task_id}")

    def _running(self) -> Iterator[tuple[str, FunctionContainer]]:
        """Yield running containers with the id of their App."""
        for call in self.calls.values():
            for container in call.containers:
                if container.started is not None and container.ended is None:
                    yield call.app_id, container
        for source in self.other_containers:
            yield from source()

    async def _end_all(self, app: App) -> None:
        for call in list(self.calls.values()):
            if call.app_id == app.id and not call.has_ended:
                self._deps.accounting.record(call.function_call_id, "end asked", note="App stopped")
                await call.end("The App was stopped.")

    def _record_line(self, call: FunctionCall, task_id: str, line: Line) -> None:
        self.add_record(
            LogRecord(
                line=line,
                app_id=call.app_id,
                task_id=task_id,
                function_id=call.function_id,
                function_call_id=call.function_call_id,
                input_id=call.input_id,
            )
        )

    def _find(self, call_id: str) -> FunctionCall:
        call = self.calls.get(call_id)
        if call is None:
            raise not_found(f"Function call {call_id}")
        return call


def _matches(record: LogRecord, request: api_pb2.AppGetLogsRequest) -> bool:
    names = ("function_id", "function_call_id", "task_id", "input_id", "sandbox_id")
    wanted = {name: value for name in names if (value := getattr(request, name))}
    return (
        record.app_id == request.app_id
        and (not request.file_descriptor or request.file_descriptor == record.line.descriptor)
        and all(getattr(record, name) == value for name, value in wanted.items())
        and request.search_text in record.line.text
    )
