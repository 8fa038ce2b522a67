"""Program of an instance: a fake one that only waits, or a real one, run by a provider."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from skysail.cloud.account import Member
from skysail.cloud.errors import Gone, ProviderError
from skysail.cloud.output_buffer import OutputBuffer
from skysail.cloud.provider import Ended, Output, Provider, RunId

_TERMINATED = 143
_KILLED = 137

log = logging.getLogger(__name__)


class Program(Protocol):
    """One program of one instance."""

    async def start(self) -> None:
        """Start the program. Raises errors of `cloud.errors`."""
        ...

    async def wait(self) -> Ended:
        """Wait until the program ends, by itself or because it was stopped."""
        ...

    async def stop(self, grace: float) -> None:
        """Ask the program to end within `grace` seconds. May be called again with a shorter time."""
        ...

    async def remove_sandbox(self) -> None:
        """Remove the pod sandbox, in any state of the program."""
        ...

    def output(self) -> AsyncIterator[Output]:
        """Yield the output from start to end, even after the program has ended."""
        ...


class FakeProgram(Program):
    """Waits `seconds`, or without limit if None; prints a few lines and exits with `code`."""

    def __init__(self, title: str, *, seconds: float | None, code: int, now: Callable[[], float]) -> None:
        self._title = title
        self._seconds = seconds
        self._code = code
        self._now = now
        self._started: float | None = None
        self._stopped: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._output = OutputBuffer()

    def resume(self, started: float) -> None:
        """Continue a program that an earlier process started."""
        self._started = started

    async def start(self) -> None:
        self._started = self._now()
        await self._print(f"{self._title} is only simulated: nothing runs here")

    async def wait(self) -> Ended:
        assert self._started is not None, "the program was started"
        left = None if self._seconds is None else max(self._started + self._seconds - self._now(), 0.0)
        await asyncio.wait({self._stopped}, timeout=left)
        code = self._stopped.result() if self._stopped.done() else self._code
        await self._print(f"{self._title} ends with exit code {code}")
        self._output.end()
        reason = "Completed" if code == 0 else "Error"
        return Ended(code=code, reason=reason, started=self._started, ended=self._now())

    async def stop(self, grace: float) -> None:
        if not self._stopped.done():
            self._stopped.set_result(_TERMINATED if grace > 0 else _KILLED)

    async def remove_sandbox(self) -> None:
        self._output.end()

    def output(self) -> AsyncIterator[Output]:
        return self._output.replay()

    async def _print(self, line: str) -> None:
        await self._output.put(Output("stdout", self._now(), f"{line}\n".encode()))


class ProviderProgram(Program):
    """A container in a pod of its own, at a provider. Keeps the output, because the pod is removed afterwards."""

    def __init__(self, provider: Provider, member: Member, now: Callable[[], float]) -> None:
        self.provider = provider
        self.member = member
        self.run = RunId(member.pod.uid, member.container.name, 0)
        self._now = now
        self._output = OutputBuffer()
        self._copying: asyncio.Task[None] | None = None

    async def prepare(self) -> str:
        """Create the sandbox and return its address."""
        return await self.provider.create_sandbox(self.member.pod)

    async def start(self) -> None:
        await self.prepare()
        await self.provider.start(self.run, self.member.container)
        self._copying = asyncio.create_task(self._copy())
        self._copying.add_done_callback(self._log_failure)

    async def wait(self) -> Ended:
        changes = self.provider.changes()
        while True:
            state = await self.provider.state(self.run)
            if isinstance(state, Ended):
                return state
            if state is None:
                return Ended(code=_KILLED, reason="Lost", message="The machine was lost.", ended=self._now())
            while await anext(changes) != self.run:
                pass

    async def stop(self, grace: float) -> None:
        try:
            await self.provider.stop(self.run, grace)
        except Gone:
            return

    async def remove_sandbox(self) -> None:
        try:
            await self.provider.remove_sandbox(self.run.pod)
            if self._copying is not None:
                await asyncio.wait({self._copying})
        finally:
            self._output.end()  # even if the program never started: a reader of the output would wait without end

    def output(self) -> AsyncIterator[Output]:
        return self._output.replay()

    def _log_failure(self, copying: asyncio.Task[None]) -> None:
        if not copying.cancelled() and (error := copying.exception()):
            log.error("simulated instance output lost", extra={"pod": self.run.pod}, exc_info=error)

    async def _copy(self) -> None:
        try:
            async for piece in self.provider.output(self.run):
                await self._output.put(piece)
        except ProviderError as error:
            text = f"The rest of the output was lost: {error}\n"
            await self._output.put(Output("stderr", self._now(), text.encode()))
        finally:
            self._output.end()
