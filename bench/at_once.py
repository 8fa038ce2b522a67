"""Many things at once, but not all of them: as many requests as an eager client has under way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

_MAX_CONCURRENT = 32

T = TypeVar("T")


async def each(items: Iterable[Any], do: Callable[[Any], Awaitable[T]]) -> list[T]:
    gate = asyncio.Semaphore(_MAX_CONCURRENT)

    async def one(item: Any) -> T:
        async with gate:
            return await do(item)

    return await asyncio.gather(*(one(item) for item in items))
