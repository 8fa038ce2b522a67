"""Tells followers which runs may have changed."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator

from skysail.cloud.contract import RunId


class Changes:
    """Any number of followers, each from the moment when it began. Who does not look is told each run once."""

    def __init__(self) -> None:
        self._followers: weakref.WeakSet[_Follower] = weakref.WeakSet()

    def tell(self, run: RunId) -> None:
        for follower in self._followers:
            follower.tell(run)

    def follow(self) -> AsyncIterator[RunId]:
        follower = _Follower()
        self._followers.add(follower)
        return follower


class _Follower:
    def __init__(self) -> None:
        self._untold: dict[RunId, None] = {}
        self._news = asyncio.Event()

    def tell(self, run: RunId) -> None:
        self._untold[run] = None
        self._news.set()

    def __aiter__(self) -> _Follower:
        return self

    async def __anext__(self) -> RunId:
        while not self._untold:
            self._news.clear()
            await self._news.wait()
        run = next(iter(self._untold))
        del self._untold[run]
        return run
