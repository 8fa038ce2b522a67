"""An asyncio event loop whose clock jumps: an hour of back-off passes in no time, and in the same order every run.

Only what lives on the loop may wait here. A thread or a child process is invisible to it and would be overtaken.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import selectors
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

T = TypeVar("T")


class Deadlock(RuntimeError):
    """Every task waits and no timer is left: in real life this would hang for ever."""


class Freeze:
    """For tasks that stand still as those of a stopped process do: what their timers do waits until they go on."""

    def __init__(self) -> None:
        self._goes_on = asyncio.Event()
        self._goes_on.set()
        self._late: list[_Timer] = []

    def context(self) -> contextvars.Context:
        """For the tasks that this freezes, and all that they start."""
        context = contextvars.copy_context()
        context.run(_freeze.set, self)
        return context

    def begin(self) -> None:
        self._goes_on.clear()

    def end(self) -> None:
        self._goes_on.set()
        late, self._late = self._late, []
        for timer in late:
            timer.go_off()

    async def over(self) -> None:
        await self._goes_on.wait()

    def reached(self, timer: _Timer) -> None:
        if self._goes_on.is_set():
            timer.go_off()
        else:
            self._late.append(timer)


class _Timer:
    """Of a task that may be frozen. It can be cancelled until it has gone off."""

    def __init__(self, do: Callable[[], object], context: contextvars.Context) -> None:
        self.handle: asyncio.TimerHandle
        self._do = do
        self._context = context

    def go_off(self) -> None:
        if not self.handle.cancelled():
            self._context.copy().run(self._do)


_freeze: contextvars.ContextVar[Freeze | None] = contextvars.ContextVar("freeze", default=None)


@contextlib.contextmanager
def unfrozen() -> Iterator[None]:
    """For what a frozen task has asked of others: they go on."""
    token = _freeze.set(None)
    try:
        yield
    finally:
        _freeze.reset(token)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Time starts at `start` and moves only while nothing is ready."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self._now

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        context = contextvars.copy_context() if context is None else context
        freeze = context.get(_freeze)
        if freeze is None:
            return super().call_at(when, callback, *args, context=context)
        timer = _Timer(functools.partial(callback, *args), context)
        timer.handle = super().call_at(when, freeze.reached, timer)
        return timer.handle

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


def run(main: Coroutine[Any, Any, T], *, start: float = 0.0) -> T:
    """As asyncio.run, on virtual time. Tasks that are left over are cancelled."""
    with asyncio.Runner(loop_factory=functools.partial(VirtualTimeLoop, start)) as runner:
        return runner.run(main)
