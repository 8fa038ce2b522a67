"""One request to a web Function: messages of ASGI in both directions, between the gateway and a container."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator

from modal_proto import api_pb2

from skysail.cloud.modal.stand_in import ids
from skysail.cloud.modal.stand_in.changes import Changes

Result = api_pb2.GenericResult
# Messages that wait for their reader. A sender that is faster waits, so that memory is bounded.
_MAX_WAITING = 16
_MAX_ATTEMPTS = 2


class WebCall:
    """A call ends with its `result`. Messages that were sent before it can still be read."""

    def __init__(self, scope: api_pb2.Asgi) -> None:
        self.function_call_id = ids.identifier("fc")
        self.input_id = ids.identifier("in")
        self.result: api_pb2.GenericResult | None = None
        self._scope = scope
        self._attempts = 0
        self._to_app: deque[api_pb2.DataChunk] = deque()
        self._last_index = 0
        self._read_index = 0
        self._is_complete = True
        self._from_app: deque[api_pb2.Asgi] = deque()
        self._has_answer = False
        self._changes = Changes()

    @property
    def can_retry(self) -> bool:
        """Return whether another container may get the call: nothing was answered, and no message is lost."""
        return self._is_complete and not self._has_answer and self._attempts < _MAX_ATTEMPTS

    def item(self) -> api_pb2.FunctionGetInputsItem:
        """Return the input of a container, and count the attempt."""
        self._attempts += 1
        return api_pb2.FunctionGetInputsItem(
            input_id=self.input_id,
            function_call_id=self.function_call_id,
            retry_count=self._attempts - 1,
            input=api_pb2.FunctionInput(args=_arguments(self._scope), data_format=api_pb2.DATA_FORMAT_CBOR),
        )

    async def send(self, message: api_pb2.Asgi) -> None:
        """Send a message to the container."""
        await self._changes.until(lambda: self._last_index - self._read_index < _MAX_WAITING or self.result is not None)
        self._last_index += 1
        data = message.SerializeToString()
        self._to_app.append(api_pb2.DataChunk(data_format=api_pb2.DATA_FORMAT_ASGI, data=data, index=self._last_index))
        self._changes.notify()

    async def messages_to_app(self, last_index: int) -> AsyncIterator[api_pb2.DataChunk]:
        """Yield the messages after this index, until the call ends."""
        while True:
            for chunk in list(self._to_app):
                if chunk.index > last_index:
                    last_index = chunk.index
                    self._read(last_index)
                    yield chunk
            if self.result is not None:
                return
            await self._changes.until(lambda: self._last_index > last_index or self.result is not None)  # noqa: B023

    async def put_answers(self, chunks: list[api_pb2.DataChunk]) -> None:
        """Take messages of the container. Waits while the client is slower."""
        for chunk in chunks:
            await self._changes.until(lambda: len(self._from_app) < _MAX_WAITING or self.result is not None)
            self._has_answer = True
            self._from_app.append(api_pb2.Asgi.FromString(chunk.data))
            self._changes.notify()

    async def next_answer(self, seconds: float | None = None) -> api_pb2.Asgi | None:
        """Return the next message of the container, or None after the last one.

        Raises TimeoutError if there is none within `seconds`.
        """
        if not await self._changes.until(lambda: bool(self._from_app) or self.result is not None, seconds):
            raise TimeoutError
        if not self._from_app:
            return None
        message = self._from_app.popleft()
        self._changes.notify()
        return message

    def finish(self, result: api_pb2.GenericResult) -> None:
        """Set the result. The first one counts."""
        if self.result is None:
            self.result = result
            self._changes.notify()

    def _read(self, index: int) -> None:
        self._read_index = max(self._read_index, index)
        while len(self._to_app) > _MAX_WAITING and self._to_app[0].index <= self._read_index:
            self._to_app.popleft()
            self._is_complete = False
        self._changes.notify()


def _arguments(scope: api_pb2.Asgi) -> bytes:
    """Return the arguments of the SDK's wrapper of an ASGI app: the scope alone."""
    import cbor2  # noqa: PLC0415 (a dependency of the SDK)
    from modal._serialization import deserialize_data_format  # noqa: PLC0415 (private, as the SDK's containers use it)

    decoded = deserialize_data_format(scope.SerializeToString(), api_pb2.DATA_FORMAT_ASGI, None)
    return cbor2.dumps(((decoded,), {}))
