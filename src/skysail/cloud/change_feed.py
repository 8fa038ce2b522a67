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
            follower.tell(thing)

    def subscribe(self) -> AsyncIterator[T]:
        follower: _Follower[T] = _Follower()
        self._followers.add(follower)
        return follower


class _Follower(Generic[T]):
    def __init__(self) -> None:
        self._untold: dict[T, None] = {}
        self._news = asyncio.Event()

    def tell(self, thing: T) -> None:
        self._untold[thing] = None
        self._news.set()

    def __aiter__(self) -> _Follower[T]:
        return self

    async def __anext__(self) -> T:
        while not self._untold:
            self._news.clear()
            await self._news.wait()
        thing = next(iter(self._untold))
        del self._untold[thing]
        return thing
