"""One container of a web Function: it takes requests from the queue of its Function until it has to leave."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Protocol

from google.protobuf.empty_pb2 import Empty
from modal_proto import api_pb2

from skysail.cloud.modal.stand_in.container import ContainerSpec, FunctionContainer
from skysail.cloud.modal.stand_in.dispatch import Call, Handler
from skysail.cloud.modal.stand_in.errors import not_found
from skysail.cloud.modal.stand_in.web_call import WebCall
from skysail.cloud.provider import Provider


class Queue(Protocol):
    """The web Function that a container works for."""

    async def take(self, container: WebContainer) -> WebCall | None:
        """Wait for a request. Returns None if there is none for a while."""
        ...

    def changed(self) -> None: ...


class WebContainer(FunctionContainer):
    """`version` is that of its Function's deployment. `calls` are in progress, by call id.

    `is_ready`: it has asked for requests. `is_leaving`: it gets no further ones.
    """

    def __init__(
        self, spec: ContainerSpec, provider: Provider, queue: Queue, now: Callable[[], float], *, version: int
    ) -> None:
        super().__init__(spec, provider, now)
        self.version = version
        self.calls: dict[str, WebCall] = {}
        self.is_ready = False
        self.is_leaving = False
        self.idle_since = now()
        self._queue = queue

    @property
    def input_handlers(self) -> dict[str, Handler]:
        return {
            "FunctionGetInputs": self._get_inputs,
            "FunctionCallGetDataIn": self._get_data_in,
            "FunctionCallPutDataOut": self._put_data_out,
            "FunctionPutOutputs": self._put_outputs,
        }

    async def _get_inputs(
        self, _request: api_pb2.FunctionGetInputsRequest, _: Call
    ) -> api_pb2.FunctionGetInputsResponse:
        if not self.is_ready:
            self.is_ready, self.idle_since = True, self._now()
            self._queue.changed()
        call = await self._queue.take(self)
        if call is None:
            last = [api_pb2.FunctionGetInputsItem(kill_switch=True)] if self.is_leaving else []
            return api_pb2.FunctionGetInputsResponse(inputs=last)
        return api_pb2.FunctionGetInputsResponse(inputs=[call.item()])

    async def _get_data_in(
        self, request: api_pb2.FunctionCallGetDataRequest, _: Call
    ) -> AsyncIterator[api_pb2.DataChunk]:
        async for chunk in self._find(request.function_call_id).messages_to_app(request.last_index):
            yield chunk

    async def _put_data_out(self, request: api_pb2.FunctionCallPutDataRequest, _: Call) -> Empty:
        await self._find(request.function_call_id).put_answers(list(request.data_chunks))
        return Empty()

    async def _put_outputs(self, request: api_pb2.FunctionPutOutputsRequest, _: Call) -> Empty:
        for output in request.outputs:
            ended = [call for call in self.calls.values() if call.input_id == output.input_id]
            for call in ended:
                call.finish(output.result)
                del self.calls[call.function_call_id]
        if not self.calls:
            self.idle_since = self._now()
        self._queue.changed()
        return Empty()

    def _find(self, call_id: str) -> WebCall:
        call = self.calls.get(call_id)
        if call is None:
            raise not_found(f"Function call {call_id}")
        return call
