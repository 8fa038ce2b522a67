"""One thread runs the model. While it does, requests gather, and go to it together when it is free again.

A request that finds the model idle is not kept waiting for company: only after a batch of several is there a moment for
them to come again, because two alternating half batches cost nearly two whole ones. A model that is quicker than a
thread can be told is run without one. What waits is bounded in rows, in bytes and in time.
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

from skysail.runtimes.model_server.errors import Left, ModelError, Refused
from skysail.runtimes.model_server.inference.latency_estimate import Speed
from skysail.runtimes.model_server.inference.queue import Bounds, Job, Queue
from skysail.runtimes.model_server.metrics import Metrics
from skysail.runtimes.model_server.models import user_code
from skysail.runtimes.model_server.tensors import Array

Run = Callable[[Sequence[Array]], list[Array]]
_LONGEST_RETRY = 60
# Below this a timer is not worth its while.
_SHORTEST_PAUSE = 0.001


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How long is waited for what, in seconds.

    Who has waited for less than `patience` is still there, as far as it is worth asking. After a batch, those it has
    answered get `pause_share` of what it took, at most `longest_pause`, to come again; all of them are waited for no
    longer than until they have. A model that took less than `quick` for `habit` times is run on the event loop itself.
    """

    patience: float = 0.1
    pause_share: float = 0.2
    longest_pause: float = 0.005
    quick: float = 0.001
    habit: int = 64


class Batcher:
    """All but the thread belongs to one event loop."""

    def __init__(
        self,
        run: Run,
        bounds: Bounds,
        metrics: Metrics,
        pace: Pace | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._run = run
        self._bounds = bounds
        self._metrics = metrics
        self._pace = pace or Pace()
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._queue = Queue(bounds)
        self._speed = Speed(self._pace.quick, self._pace.habit)
        self._busy = False
        self._began: float | None = None
        self._is_full = False
        self._counted_at = self._counted = -math.inf
        self._awaited = 0
        self._latest: asyncio.TimerHandle | None = None
        self._inbox: SimpleQueue[list[Job] | None] = SimpleQueue()
        Thread(target=self._work, name="inference", daemon=True).start()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def busy_seconds(self) -> float:
        """For how long the thread has been with one batch."""
        return 0.0 if self._began is None else self._clock() - self._began

    def submit(self, job: Job) -> None:
        """Raises Refused where too much waits already."""
        queue = self._queue
        if queue.rows and not (queue.has_room(job.work) and self._wait() <= self._bounds.queue_seconds):
            retry = max(1, min(_LONGEST_RETRY, math.ceil(self._speed.wait(queue.rows))))
            raise Refused("Too many requests wait for the model; try again later.", 503, retry_after=retry)
        queue.add(job)
        if self._latest is not None and len(queue) >= self._awaited:
            self._next()
        elif not self._busy:
            # Not at once: those that came in with the same turn of the loop go along.
            self._busy = True
            self._loop.call_soon(self._next)

    def close(self) -> None:
        """The thread ends with what it does now."""
        self._inbox.put(None)

    def _wait(self) -> float:
        """How long who comes now would wait, as far as that is known: at least as long as the model already takes."""
        return max(self._speed.wait(self._queue.rows), self.busy_seconds)

    def _most_rows(self) -> float:
        return min(self._bounds.batch_rows, self._speed.fitting(self._bounds.batch_seconds))

    def _next(self) -> None:
        if self._latest is not None:
            self._latest.cancel()
            self._latest = None
        now = self._clock()
        batch, left = self._queue.take(self._most_rows(), now - self._pace.patience)
        for job in left:
            self._metrics.left()
            job.settle(Left("The client has left."))
        self._busy = bool(batch)
        if not batch:
            return
        self._is_full = self._queue.rows > 0
        if self._speed.is_quick(batch[0].work.kind, _rows(batch)):
            self._done(batch, *self._timed(batch, self._worked(now)))
        else:
            self._began = now
            self._inbox.put(batch)

    def _worked(self, now: float) -> float:
        """What the processor has done for the loop so far. To ask each time would cost a tenth of a small request."""
        if now - self._counted_at > self._pace.quick:
            self._counted_at, self._counted = now, thread_time()
        return self._counted

    def _work(self) -> None:
        while (batch := self._inbox.get()) is not None:
            self._loop.call_soon_threadsafe(self._done, batch, *self._timed(batch, thread_time()))

    def _timed(self, batch: list[Job], worked: float) -> tuple[list[list[Array] | ModelError], float, float]:
        """The answers, and the seconds that they took by the clock and by the processor, which had `worked` before."""
        began = self._clock()
        answers = self._answers(batch)
        seconds = self._clock() - began
        return answers, seconds, seconds if seconds < self._pace.quick else thread_time() - worked

    def _answers(self, batch: list[Job]) -> list[list[Array] | ModelError]:
        """An answer for each. Where they fail together, each is tried alone: nobody pays for another's input."""
        try:
            return list(user_code.call(self._together, batch))
        except ModelError as error:
            return [error] if len(batch) == 1 else [self._answers([job])[0] for job in batch]

    def _together(self, batch: list[Job]) -> list[list[Array]]:
        if len(batch) == 1:
            return [self._run(batch[0].work.arrays)]
        arrays = [np.concatenate(parts) for parts in zip(*(job.work.arrays for job in batch), strict=True)]
        outputs = self._run(arrays)
        if any(len(output) != len(arrays[0]) for output in outputs):
            raise ModelError("it gave another number of rows than it was given")
        answers, start = [], 0
        for job in batch:
            end = start + job.work.rows
            answers.append([output[start:end] for output in outputs])
            start = end
        return answers

    def _done(
        self, batch: list[Job], answers: list[list[Array] | ModelError], seconds: float, processor: float
    ) -> None:
        self._began = None
        rows = _rows(batch)
        self._metrics.ran(rows)
        # What fails may fail at once, and tells nothing of what does not.
        if not any(isinstance(answer, ModelError) for answer in answers):
            self._speed.ran(batch[0].work.kind, rows, seconds, processor, is_full=self._is_full)
        for job, answer in zip(batch, answers, strict=True):
            job.settle(answer)
        self._gather(len(batch), seconds)

    def _gather(self, answered: int, seconds: float) -> None:
        """Those who were just answered may ask again at once. Where others wait, it is worth a moment to let them."""
        pause = min(seconds * self._pace.pause_share, self._pace.longest_pause)
        if pause >= _SHORTEST_PAUSE and self._queue.rows < self._most_rows() and (self._queue or answered > 1):
            self._awaited = len(self._queue) + answered
            self._latest = self._loop.call_later(pause, self._next)
        else:
            # After the answers are written, which frees their connections for what comes next.
            self._loop.call_soon(self._next)


def _rows(batch: list[Job]) -> int:
    return sum(job.work.rows for job in batch)
