"""Run concurrent requests for the same work once, and report its progress to every caller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")

Report = Callable[[str], None]


class Shared(Generic[T]):
    """Work in progress, by key. One per event loop.

    Work is cancelled when its last caller stops waiting.
    """

    def __init__(self) -> None:
        self._under_way: dict[str, _Work[T]] = {}
        self._tasks: set[asyncio.Task[T]] = set()

    async def run(self, key: str, begin: Callable[[Report], Coroutine[Any, Any, T]], report: Report) -> T:
        work = self._under_way.get(key)
        if work is None:
            work = self._under_way[key] = self._start(begin)
        try:
            return await work.followed_by(report)
        finally:
            if not work.has_followers and self._under_way.get(key) is work:
                del self._under_way[key]
                work.task.cancel()  # no effect if the task is done

    def _start(self, begin: Callable[[Report], Coroutine[Any, Any, T]]) -> _Work[T]:
        work = _Work(begin)
        self._tasks.add(work.task)
        work.task.add_done_callback(self._forget)
        return work

    def _forget(self, task: asyncio.Task[T]) -> None:
        self._tasks.discard(task)
        # Callers have received the error. Retrieve it here in case none is left.
        _ = task.cancelled() or task.exception()


class _Work(Generic[T]):
    def __init__(self, begin: Callable[[Report], Coroutine[Any, Any, T]]) -> None:
        self._followers: list[Report] = []
        self._last = ""
        self.task = asyncio.create_task(begin(self._report))

    @property
    def has_followers(self) -> bool:
        return bool(self._followers)

    async def followed_by(self, report: Report) -> T:
        if self._last:
            report(self._last)
        self._followers.append(report)
        try:
            return await asyncio.shield(self.task)
        finally:
            self._followers.remove(report)

    def _report(self, step: str) -> None:
        self._last = step
        for report in self._followers:
            report(step)
