"""Feed of changes for any number of followers."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class ChangeFeed(Generic[T]):
    """Change feed. A follower receives changes from its start on; pending duplicates are merged."""

    def __init__(self) -> None:
        self._followers: weakref.WeakSet[_Follower[T]] = weakref.WeakSet()

    def publish(self, thing: T) -> None:
        for follower in self._followers:
            follower.notify(thing)

    def subscribe(self) -> AsyncIterator[T]:
        follower: _Follower[T] = _Follower()
        self._followers.add(follower)
        return follower


class _Follower(Generic[T]):
    def __init__(self) -> None:
        self._pending: dict[T, None] = {}
        self._changed = asyncio.Event()

    def notify(self, thing: T) -> None:
        self._pending[thing] = None
        self._changed.set()

    def __aiter__(self) -> _Follower[T]:
        return self

    async def __anext__(self) -> T:
        while not self._pending:
            self._changed.clear()
            await self._changed.wait()
        thing = next(iter(self._pending))
        del self._pending[thing]
        return thing
