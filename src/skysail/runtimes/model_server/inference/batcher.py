"""Batching: one thread runs the model, and requests that arrive meanwhile form the next batch.

A request that finds the model idle runs at once. Only after a batch of several requests is there a short pause for new
ones, because two alternating half batches cost nearly as much as two full ones. A model that is faster than a thread
switch runs on the event loop. The queue is limited in rows, bytes and time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Thread
from time import perf_counter, thread_time

import msgspec
import numpy as np

from skysail.runtimes.model_server.errors import ClientDisconnected, ModelError, RequestError
from skysail.runtimes.model_server.inference.latency_estimate import LatencyEstimator
from skysail.runtimes.model_server.inference.queue import QueuedRequest, QueueLimits, RequestQueue
from skysail.runtimes.model_server.metrics import Metrics
from skysail.runtimes.model_server.models import user_code
from skysail.runtimes.model_server.tensors import Array

Run = Callable[[Sequence[Array]], list[Array]]
_MAX_RETRY_SECONDS = 60
# A shorter pause is not worth a timer.
_MIN_DELAY = 0.001


class BatchTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Timing of the batcher, in seconds.

    - `max_wait`: a request that has waited less is not checked for a disconnected client.
    - `pause_share`, `longest_pause`: share of a batch's duration, and maximum, to wait for new requests after a batch.
      The pause ends early when all answered clients have sent a new request.
    - `quick`, `habit`: a model that took less than `quick` for `habit` runs in a row runs on the event loop itself.
    """

    max_wait: float = 0.1
    pause_share: float = 0.2
    longest_pause: float = 0.005
    quick: float = 0.001
    habit: int = 64


class Batcher:
    """Batches requests. All but the thread belongs to one event loop."""

    def __init__(
        self,
        run: Run,
        queue_limits: QueueLimits,
        metrics: Metrics,
        batch_timing: BatchTiming | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._run = run
        self._queue_limits = queue_limits
        self._metrics = metrics
        self._batch_timing = batch_timing or BatchTiming()
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._request_queue = RequestQueue(queue_limits)
        self._latency = LatencyEstimator(self._batch_timing.quick, self._batch_timing.habit)
        self._busy = False
        self._began: float | None = None
        self._is_full = False
        self._counted_at = self._counted = -math.inf
        self._awaited = 0
        self._latest: asyncio.TimerHandle | None = None
        self._inbox: SimpleQueue[list[QueuedRequest] | None] = SimpleQueue()
        Thread(target=self._work, name="inference", daemon=True).start()

    @property
    def waiting(self) -> int:
        return len(self._request_queue)

    @property
    def busy_seconds(self) -> float:
        """Return how long the thread has been running the current batch."""
        return 0.0 if self._began is None else self._clock() - self._began

    def submit(self, queued_request: QueuedRequest) -> None:
        """Queue a request. Raises RequestError if the queue is full."""
        request_queue = self._request_queue
        if request_queue.rows and not (
            request_queue.has_room(queued_request.work) and self._wait() <= self._queue_limits.queue_seconds
        ):
            retry = max(1, min(_MAX_RETRY_SECONDS, math.ceil(self._latency.wait(request_queue.rows))))
            raise RequestError("Too many requests wait for the model: retry later.", 503, retry_after=retry)
        request_queue.add(queued_request)
        if self._latest is not None and len(request_queue) >= self._awaited:
            self._next()
        elif not self._busy:
            # Defer, so that requests of the same loop iteration join the batch.
            self._busy = True
            self._loop.call_soon(self._next)

    def close(self) -> None:
        """Stop the thread after its current batch."""
        self._inbox.put(None)

    def _wait(self) -> float:
        """Return the estimated wait of a new request: at least as long as the current batch has been running."""
        return max(self._latency.wait(self._request_queue.rows), self.busy_seconds)

    def _most_rows(self) -> float:
        return min(self._queue_limits.batch_rows, self._latency.fitting(self._queue_limits.batch_seconds))

    def _next(self) -> None:
        if self._latest is not None:
            self._latest.cancel()
            self._latest = None
        now = self._clock()
        batch, left = self._request_queue.take(self._most_rows(), now - self._batch_timing.max_wait)
        for queued_request in left:
            self._metrics.left()
            queued_request.settle(ClientDisconnected("The client has disconnected."))
        self._busy = bool(batch)
        if not batch:
            return
        self._is_full = self._request_queue.rows > 0
        if self._latency.is_quick(batch[0].work.kind, _rows(batch)):
            self._done(batch, *self._timed(batch, self._worked(now)))
        else:
            self._began = now
            self._inbox.put(batch)

    def _worked(self, now: float) -> float:
        """Return the CPU time of the loop so far, cached: to read it each time costs a tenth of a small request."""
        if now - self._counted_at > self._batch_timing.quick:
            self._counted_at, self._counted = now, thread_time()
        return self._counted

    def _work(self) -> None:
        while (batch := self._inbox.get()) is not None:
            self._loop.call_soon_threadsafe(self._done, batch, *self._timed(batch, thread_time()))

    def _timed(self, batch: list[QueuedRequest], worked: float) -> tuple[list[list[Array] | ModelError], float, float]:
        """Return the answers, and the wall clock and CPU seconds; `worked` is the CPU time before."""
        began = self._clock()
        answers = self._answers(batch)
        seconds = self._clock() - began
        return answers, seconds, seconds if seconds < self._batch_timing.quick else thread_time() - worked

    def _answers(self, batch: list[QueuedRequest]) -> list[list[Array] | ModelError]:
        """Return an answer for each job.

        If a batch fails, run each job alone, so that one bad input fails only itself.
        """
        try:
            return list(user_code.call_user_code(self._together, batch))
        except ModelError as error:
            return [error] if len(batch) == 1 else [self._answers([queued_request])[0] for queued_request in batch]

    def _together(self, batch: list[QueuedRequest]) -> list[list[Array]]:
        if len(batch) == 1:
            return [self._run(batch[0].work.arrays)]
        arrays = [
            np.concatenate(parts)
            for parts in zip(*(queued_request.work.arrays for queued_request in batch), strict=True)
        ]
        outputs = self._run(arrays)
        if any(len(output) != len(arrays[0]) for output in outputs):
            raise ModelError("it returned another number of rows than it got")
        answers, start = [], 0
        for queued_request in batch:
            end = start + queued_request.work.rows
            answers.append([output[start:end] for output in outputs])
            start = end
        return answers

    def _done(
        self, batch: list[QueuedRequest], answers: list[list[Array] | ModelError], seconds: float, processor: float
    ) -> None:
        self._began = None
        rows = _rows(batch)
        self._metrics.ran(rows)
        # Failed runs may be fast and say nothing about the others.
        if not any(isinstance(answer, ModelError) for answer in answers):
            self._latency.ran(batch[0].work.kind, rows, seconds, processor, is_full=self._is_full)
        for queued_request, answer in zip(batch, answers, strict=True):
            queued_request.settle(answer)
        self._gather(len(batch), seconds)

    def _gather(self, answered: int, seconds: float) -> None:
        """Start the next batch, after a short pause if answered clients may send again."""
        pause = min(seconds * self._batch_timing.pause_share, self._batch_timing.longest_pause)
        if (
            pause >= _MIN_DELAY
            and self._request_queue.rows < self._most_rows()
            and (self._request_queue or answered > 1)
        ):
            self._awaited = len(self._request_queue) + answered
            self._latest = self._loop.call_later(pause, self._next)
        else:
            # Defer until the answers are written, which frees their connections for new requests.
            self._loop.call_soon(self._next)


def _rows(batch: list[QueuedRequest]) -> int:
    return sum(queued_request.work.rows for queued_request in batch)
