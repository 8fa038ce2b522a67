"""One thread runs the model. While it does, requests gather, and go to it together when it is free again.

A request that finds the model idle is not kept waiting for company: only after a batch of several is there a moment for
them to come again, because two alternating half batches cost nearly two whole ones. A model that is quicker than a
thread can be told is run without one. What waits is bounded in rows.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from queue import SimpleQueue
from threading import Thread
from time import perf_counter
from typing import NamedTuple, Protocol, TypeAlias

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
_SHORTEST_PAUSE = 0.001


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How long is waited for what, in seconds.

    Who has waited for less than `patience` is still there, as far as it is worth asking. After a batch, those it has
    answered get `pause_share` of what it took, at most `longest_pause`, to come again; all of them are waited for no
    longer than until they have. A model that takes less than `quick` is run on the event loop itself.
    """

    patience: float = 0.1
    pause_share: float = 0.2
    longest_pause: float = 0.005
    quick: float = 0.001


Outcome: TypeAlias = list[Array] | ModelError | Left


class Job(Protocol):
    """A request that waits for its answer. `since` is when it came, by the clock of the batcher."""

    @property
    def work(self) -> Work: ...

    @property
    def since(self) -> float: ...

    @property
    def has_left(self) -> Callable[[], bool]: ...

    def settle(self, outcome: Outcome) -> None:
        """Called once, on the event loop. Raises nothing."""


class _Run(NamedTuple):
    """What a batch took."""

    kind: Hashable
    rows: int
    seconds: float


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
        self._clock = perf_counter
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Job] = deque()
        self._rows = 0
        self._last: _Run | None = None
        self._busy = False
        self._awaited = 0
        self._latest: asyncio.TimerHandle | None = None
        self._inbox: SimpleQueue[list[Job] | None] = SimpleQueue()
        Thread(target=self._work, name="inference", daemon=True).start()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def submit(self, job: Job) -> None:
        """Raises Refused where too much waits already."""
        rows = job.work.rows
        if self._waiting and self._rows + rows > self._queue_rows:
            raise Refused(
                "Too many requests wait for the model; try again later.", 503, retry_after=self._retry_after()
            )
        self._waiting.append(job)
        self._rows += rows
        if self._latest is not None and len(self._waiting) >= self._awaited:
            self._next()
        elif not self._busy:
            # Not at once: those that came in with the same turn of the loop go along.
            self._busy = True
            self._loop.call_soon(self._next)

    def close(self) -> None:
        """The thread ends with what it does now."""
        self._inbox.put(None)

    def _next(self) -> None:
        if self._latest is not None:
            self._latest.cancel()
            self._latest = None
        batch = self._take()
        self._busy = bool(batch)
        if batch and self._is_quick(batch):
            self._done(batch, *self._timed(batch))
        elif batch:
            self._inbox.put(batch)

    def _take(self) -> list[Job]:
        """In the order in which they came, as many as may be run together."""
        batch: list[Job] = []
        rows, longest_ago = 0, self._clock() - self._pace.patience
        while self._waiting:
            job = self._waiting[0]
            work = job.work
            if batch and (rows + work.rows > self._batch_rows or work.kind is None or work.kind != batch[0].work.kind):
                break
            self._waiting.popleft()
            self._rows -= work.rows
            if job.since <= longest_ago and job.has_left():
                self._metrics.left()
                job.settle(Left("The client has left."))
                continue
            rows += work.rows
            batch.append(job)
        return batch

    def _is_quick(self, batch: list[Job]) -> bool:
        """By what the last one of its kind took: then a thread would cost more than the model does."""
        if self._last is None or self._last.kind is None or self._last.kind != batch[0].work.kind:
            return False
        return self._last.seconds * max(1.0, _rows(batch) / self._last.rows) < self._pace.quick

    def _work(self) -> None:
        while (batch := self._inbox.get()) is not None:
            self._loop.call_soon_threadsafe(self._done, batch, *self._timed(batch))

    def _timed(self, batch: list[Job]) -> tuple[list[list[Array] | ModelError], float]:
        began = self._clock()
        answers = self._answers(batch)
        return answers, self._clock() - began

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
        rows = _rows(batch)
        self._metrics.ran(rows)
        # What fails may fail at once, and tells nothing of what does not.
        if not any(isinstance(answer, ModelError) for answer in answers):
            self._last = _Run(batch[0].work.kind, rows, max(seconds, 1e-6))
        for job, answer in zip(batch, answers, strict=True):
            job.settle(answer)
        self._gather(len(batch), seconds)

    def _gather(self, answered: int, seconds: float) -> None:
        """Those who were just answered may ask again at once. Where others wait, it is worth a moment to let them."""
        pause = min(seconds * self._pace.pause_share, self._pace.longest_pause)
        if pause >= _SHORTEST_PAUSE and self._rows < self._batch_rows and (self._waiting or answered > 1):
            self._awaited = len(self._waiting) + answered
            self._latest = self._loop.call_later(pause, self._next)
        else:
            # After the answers are written, which frees their connections for what comes next.
            self._loop.call_soon(self._next)

    def _retry_after(self) -> int:
        seconds = self._rows / self._last.rows * self._last.seconds if self._last else 1
        return max(1, min(_LONGEST_RETRY, math.ceil(seconds)))


def _rows(batch: list[Job]) -> int:
    return sum(job.work.rows for job in batch)
