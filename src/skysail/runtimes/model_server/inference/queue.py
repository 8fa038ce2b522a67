"""Queue of requests for the model, first in, first out, with limits."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

import msgspec

from skysail.runtimes.model_server.errors import Left, ModelError
from skysail.runtimes.model_server.protocol.input_validation import Work
from skysail.runtimes.model_server.tensors import Array

Outcome: TypeAlias = list[Array] | ModelError | Left


class Job(Protocol):
    """Request that waits for its answer. `since` is its arrival, by the batcher's clock."""

    @property
    def work(self) -> Work: ...

    @property
    def since(self) -> float: ...

    @property
    def has_left(self) -> Callable[[], bool]: ...

    def settle(self, outcome: Outcome) -> None:
        """Set the outcome. Called once, on the event loop. Raises nothing."""


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one batch and of the queue. With `batch_rows` 0, each request runs alone."""

    batch_rows: int
    queue_rows: int
    batch_bytes: float = math.inf
    queue_bytes: float = math.inf
    batch_seconds: float = math.inf
    queue_seconds: float = math.inf


class Queue:
    """Queue of requests. A request is never split, so one that exceeds a limit is accepted if it is alone."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._jobs: deque[Job] = deque()
        self._size = 0
        self.rows = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def has_room(self, work: Work) -> bool:
        bounds = self._bounds
        return self.rows + work.rows <= bounds.queue_rows and self._size + work.size <= bounds.queue_bytes

    def add(self, job: Job) -> None:
        work = job.work
        self._jobs.append(job)
        self.rows += work.rows
        self._size += work.size

    def take(self, most_rows: float, long_ago: float) -> tuple[list[Job], list[Job]]:
        """Return the requests of the next batch, and disconnected ones that arrived before `long_ago`."""
        batch: list[Job] = []
        left: list[Job] = []
        jobs, rows, size = self._jobs, 0, 0
        while jobs:
            job = jobs[0]
            work = job.work
            if batch and (
                rows + work.rows > most_rows
                or size + work.size > self._bounds.batch_bytes
                or work.kind is None
                or work.kind != batch[0].work.kind
            ):
                break
            jobs.popleft()
            self.rows -= work.rows
            self._size -= work.size
            if job.since <= long_ago and job.has_left():
                left.append(job)
                continue
            rows += work.rows
            size += work.size
            batch.append(job)
        return batch, left
