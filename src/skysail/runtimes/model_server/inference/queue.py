"""Queue of requests for the model, first in, first out, with limits."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

import msgspec

from skysail.runtimes.model_server.errors import ClientDisconnected, ModelError
from skysail.runtimes.model_server.protocol.input_validation import InferenceInput
from skysail.runtimes.model_server.tensors import Array

InferenceResult: TypeAlias = list[Array] | ModelError | ClientDisconnected


class QueuedRequest(Protocol):
    """Request that waits for its answer. `since` is its arrival, by the batcher's clock."""

    @property
    def work(self) -> InferenceInput: ...

    @property
    def since(self) -> float: ...

    @property
    def has_left(self) -> Callable[[], bool]: ...

    def settle(self, outcome: InferenceResult) -> None:
        """Set the outcome. Called once, on the event loop. Raises nothing."""


class QueueLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one batch and of the queue. With `batch_rows` 0, each request runs alone."""

    batch_rows: int
    queue_rows: int
    batch_bytes: float = math.inf
    queue_bytes: float = math.inf
    batch_seconds: float = math.inf
    queue_seconds: float = math.inf


class RequestQueue:
    """Queue of requests. A request is never split, so one that exceeds a limit is accepted if it is alone."""

    def __init__(self, queue_limits: QueueLimits) -> None:
        self._queue_limits = queue_limits
        self._queued_requests: deque[QueuedRequest] = deque()
        self._size = 0
        self.rows = 0

    def __len__(self) -> int:
        return len(self._queued_requests)

    def has_room(self, inference_input: InferenceInput) -> bool:
        queue_limits = self._queue_limits
        return (
            self.rows + inference_input.rows <= queue_limits.queue_rows
            and self._size + inference_input.size <= queue_limits.queue_bytes
        )

    def add(self, queued_request: QueuedRequest) -> None:
        inference_input = queued_request.work
        self._queued_requests.append(queued_request)
        self.rows += inference_input.rows
        self._size += inference_input.size

    def take(self, most_rows: float, long_ago: float) -> tuple[list[QueuedRequest], list[QueuedRequest]]:
        """Return the requests of the next batch, and disconnected ones that arrived before `long_ago`."""
        batch: list[QueuedRequest] = []
        left: list[QueuedRequest] = []
        queued_requests, rows, size = self._queued_requests, 0, 0
        while queued_requests:
            queued_request = queued_requests[0]
            inference_input = queued_request.work
            if batch and (
                rows + inference_input.rows > most_rows
                or size + inference_input.size > self._queue_limits.batch_bytes
                or inference_input.kind is None
                or inference_input.kind != batch[0].work.kind
            ):
                break
            queued_requests.popleft()
            self.rows -= inference_input.rows
            self._size -= inference_input.size
            if queued_request.since <= long_ago and queued_request.has_left():
                left.append(queued_request)
                continue
            rows += inference_input.rows
            size += inference_input.size
            batch.append(queued_request)
        return batch, left
