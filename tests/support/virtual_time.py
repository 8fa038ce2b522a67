"""An asyncio event loop whose clock jumps: an hour of back-off passes in no time, and in the same order every run.

Only what lives on the loop may wait here. A thread or a child process is invisible to it and would be overtaken.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


class Deadlock(RuntimeError):
    """Every task waits and no timer is left: in real life this would hang for ever."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Time starts at zero and moves only while nothing is ready."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self._now

    def jump(self, seconds: float) -> None:
        self._now += seconds


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise Deadlock(_waiting(self._loop))
        self._loop.jump(timeout)
        return ready


def _waiting(loop: asyncio.AbstractEventLoop) -> str:
    lines = []
    for task in asyncio.all_tasks(loop):
        frames = task.get_stack(limit=1)
        where = f"{frames[0].f_code.co_filename}:{frames[0].f_lineno}" if frames else "nowhere"
        lines.append(f"  {task.get_name()} ({getattr(task.get_coro(), '__qualname__', '?')}) at {where}")
    return "Nothing is ready and no timer is set. Tasks wait here:\n" + "\n".join(sorted(lines))


def run(main: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, on virtual time. Tasks that are left over are cancelled."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
