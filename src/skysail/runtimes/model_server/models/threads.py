"""Slow work beside the event loop, which nobody has to wait for when the process ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Thread
from typing import TypeVar

from skysail.runtimes.model_server.errors import ServingError

_Result = TypeVar("_Result")


async def run(function: Callable[..., _Result], *arguments: object) -> _Result:
    """Like asyncio.to_thread; but the end of the loop does not wait for it. Raises what ServingError it raises."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[_Result] = loop.create_future()

    def work() -> None:
        try:
            found = function(*arguments)
        except ServingError as error:
            loop.call_soon_threadsafe(result.set_exception, error)
        else:
            loop.call_soon_threadsafe(result.set_result, found)

    Thread(target=work, name=function.__name__, daemon=True).start()
    return await result
