"""One thread runs the model. While it does, requests gather, and go to it together when it is free again.

A request that finds the model idle is not kept waiting for company: there is no timer for that. What waits is bounded
in rows.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Thread

import msgspec
import numpy as np

from skysail.runtimes.fastapi_pytorch import foreign
from skysail.runtimes.fastapi_pytorch.errors import Left, ModelError, Refused
from skysail.runtimes.fastapi_pytorch.intake import Work
from skysail.runtimes.fastapi_pytorch.metrics import Metrics
from skysail.runtimes.fastapi_pytorch.tensors import Array

Run = Callable[[Sequence[Array]], list[Array]]
_LONGEST_RETRY = 60
# Below this a timer is not worth its while.
_SHORTEST_PAUSE = 0.0005


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How long is waited for what, in seconds.

    Who has waited for less than `patience` is still there, as far as it is worth asking. After a batch, those it has
    answered get `pause_share` of what it took, at most `longest_pause`, to come again.
    """

    patience: float = 0.1
    pause_share: float = 0.1
    longest_pause: float = 0.005


class Job:
    """A request that waits for its answer."""

    __slots__ = ("answer", "has_left", "since", "work")

    def __init__(
        self, work: Work, answer: asyncio.Future[list[Array]], has_left: Callable[[], bool], at: float
    ) -> None:
        self.work = work
        self.answer = answer
        self.has_left = has_left
        self.since = at


class Batcher:
    """All but the thread belongs to one event loop."""

    def __init__(
        self, run: Run, *, batch_rows: int, queue_rows: int, metrics: Metrics, pace: Pace | None = None
    ) -> None:
        """`batch_rows` of 0 gives every request to the model alone."""
        self._run = run
        self._batch_rows = batch_rows
        self._queue_rows = queue_rows
        self._metrics = metrics
        self._pace = pace or Pace()
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Job] = deque()
        self._rows = 0
        self._rows_per_second = 0.0
        self._busy = False
        self._awaited = 0
        self._latest: asyncio.TimerHandle | None = None
        self._inbox: SimpleQueue[list[Job] | None] = SimpleQueue()
        Thread(target=self._work, name="inference", daemon=True).start()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def submit(self, work: Work, has_left: Callable[[], bool]) -> asyncio.Future[list[Array]]:
        """Raises Refused where too much waits already."""
        if self._waiting and self._rows + work.rows > self._queue_rows:
            raise Refused(
                "Too many requests wait for the model; try again later.", 503, retry_after=self._retry_after()
            )
        job = Job(work, self._loop.create_future(), has_left, self._loop.time())
        self._waiting.append(job)
        self._rows += work.rows
        if self._latest is not None and len(self._waiting) >= self._awaited:
            self._next()
        elif not self._busy:
            # Not at once: those that came in with the same turn of the loop go along.
            self._busy = True
            self._loop.call_soon(self._next)
        return job.answer

    def close(self) -> None:
        """The thread ends with what it does now."""
        self._inbox.put(None)

    def _next(self) -> None:
        if self._latest is not None:
            self._latest.cancel()
            self._latest = None
        batch = self._take()
        self._busy = bool(batch)
        if batch:
            self._inbox.put(batch)

    def _take(self) -> list[Job]:
        """In the order in which they came, as many as may be run together."""
        batch: list[Job] = []
        rows, now = 0, self._loop.time()
        while self._waiting:
            job = self._waiting[0]
            if batch and (
                rows + job.work.rows > self._batch_rows or job.work.kind is None or job.work.kind != batch[0].work.kind
            ):
                break
            self._waiting.popleft()
            self._rows -= job.work.rows
            if job.answer.done() or (now - job.since >= self._pace.patience and job.has_left()):
                self._metrics.left()
                _settle(job, Left("The client has left."))
                continue
            rows += job.work.rows
            batch.append(job)
        return batch

    def _work(self) -> None:
        while (batch := self._inbox.get()) is not None:
            began = self._loop.time()
            answers = self._answers(batch)
            self._loop.call_soon_threadsafe(self._done, batch, answers, self._loop.time() - began)

    def _answers(self, batch: list[Job]) -> list[list[Array] | ModelError]:
        """An answer for each. Where they fail together, each is tried alone: nobody pays for another's input."""
        try:
            return list(foreign.call(self._together, batch))
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

    def _done(self, batch: list[Job], answers: list[list[Array] | ModelError], seconds: float) -> None:
        rows = sum(job.work.rows for job in batch)
        self._rows_per_second = rows / max(seconds, 1e-6)
        self._metrics.ran(rows)
        for job, answer in zip(batch, answers, strict=True):
            _settle(job, answer)
        self._gather(len(batch), seconds)

    def _gather(self, answered: int, seconds: float) -> None:
        """Those who were just answered may ask again at once. Where others wait, it is worth a moment to let them."""
        pause = min(seconds * self._pace.pause_share, self._pace.longest_pause)
        if pause >= _SHORTEST_PAUSE and 0 < self._rows < self._batch_rows:
            self._awaited = len(self._waiting) + answered
            self._latest = self._loop.call_later(pause, self._next)
        else:
            # After the answers are written, which frees their connections for what comes next.
            self._loop.call_soon(self._next)

    def _retry_after(self) -> int:
        seconds = self._rows / self._rows_per_second if self._rows_per_second else 1
        return max(1, min(_LONGEST_RETRY, math.ceil(seconds)))


def _settle(job: Job, answer: list[Array] | Exception) -> None:
    if job.answer.done():
        return
    if isinstance(answer, Exception):
        job.answer.set_exception(answer)
    else:
        job.answer.set_result(answer)
