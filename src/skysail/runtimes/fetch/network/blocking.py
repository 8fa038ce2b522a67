"""Calls that block, on threads that nobody waits for at the end: a silent name server must not hold up an exit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def call(function: Callable[[], T]) -> T:
    """Its result or error. Whoever is cancelled while waiting leaves it running."""
    answer: Future[T] = Future()
    answer.set_running_or_notify_cancel()
    threading.Thread(target=_run, args=(function, answer), daemon=True).start()
    return await asyncio.wrap_future(answer)


def _run(function: Callable[[], T], answer: Future[T]) -> None:
    try:
        answer.set_result(function())
    except Exception as error:  # noqa: BLE001  # carried to whoever asked, who is in another thread
        answer.set_exception(error)
