"""Work that several ask for at the same time is done once, and each of them hears how far it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")

Say = Callable[[str], None]


class Shared(Generic[T]):
    """One per event loop. Work goes on while anybody waits for it, and ends early when nobody does any more."""

    def __init__(self) -> None:
        self._under_way: dict[str, _Work[T]] = {}
        self._tasks: set[asyncio.Task[T]] = set()

    async def run(self, key: str, begin: Callable[[Say], Coroutine[Any, Any, T]], say: Say) -> T:
        work = self._under_way.get(key)
        if work is None:
            work = self._under_way[key] = self._start(begin)
        try:
            return await work.followed_by(say)
        finally:
            if not work.has_followers and self._under_way.get(key) is work:
                del self._under_way[key]
                work.task.cancel()  # nothing happens where it is done

    def _start(self, begin: Callable[[Say], Coroutine[Any, Any, T]]) -> _Work[T]:
        work = _Work(begin)
        self._tasks.add(work.task)
        work.task.add_done_callback(self._forget)
        return work

    def _forget(self, task: asyncio.Task[T]) -> None:
        self._tasks.discard(task)
        # Those who waited have the error; where all have gone nobody else would take it.
        _ = task.cancelled() or task.exception()


class _Work(Generic[T]):
    def __init__(self, begin: Callable[[Say], Coroutine[Any, Any, T]]) -> None:
        self._followers: list[Say] = []
        self._last = ""
        self.task = asyncio.create_task(begin(self._tell))

    @property
    def has_followers(self) -> bool:
        return bool(self._followers)

    async def followed_by(self, say: Say) -> T:
        if self._last:
            say(self._last)
        self._followers.append(say)
        try:
            return await asyncio.shield(self.task)
        finally:
            self._followers.remove(say)

    def _tell(self, step: str) -> None:
        self._last = step
        for say in self._followers:
            say(step)
