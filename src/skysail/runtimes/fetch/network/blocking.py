"""Blocking calls on daemon threads, so that a slow name server cannot delay the exit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def call(function: Callable[[], T]) -> T:
    """Return the result of the call, or raise its error. If the caller is cancelled, the call keeps running."""
    answer: Future[T] = Future()
    answer.set_running_or_notify_cancel()
    threading.Thread(target=_run, args=(function, answer), daemon=True).start()
    return await asyncio.wrap_future(answer)


def _run(function: Callable[[], T], answer: Future[T]) -> None:
    try:
        answer.set_result(function())
    except Exception as error:  # noqa: BLE001  # raised again in the calling thread
        answer.set_exception(error)
