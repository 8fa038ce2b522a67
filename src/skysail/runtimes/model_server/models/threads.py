"""Slow work on daemon threads, which do not delay the exit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Thread
from typing import TypeVar

from skysail.runtimes.model_server.errors import ServingError

_Result = TypeVar("_Result")


async def run(function: Callable[..., _Result], *arguments: object) -> _Result:
    """Run a function like asyncio.to_thread, but without waiting for it when the loop ends. Raises its ServingError."""
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
