"""One command that was started beside the program of a sandbox."""

from __future__ import annotations

import asyncio
import time

from skysail.cloud.errors import ProviderError
from skysail.cloud.modal.stand_in.changes import Changes
from skysail.cloud.modal.stand_in.errors import conflict, invalid
from skysail.cloud.modal.stand_in.stream_log import STDERR, STDOUT, StreamLog
from skysail.cloud.provider import Session

_KILLED = 137


class StandardInput:
    """Writes to the standard input of a session. Offsets make a repeated write harmless."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = asyncio.Lock()
        self.written = 0
        self.is_closed = False

    async def write(self, offset: int, data: bytes, *, eof: bool) -> None:
        """Write the part that is new. Raises FAILED_PRECONDITION or INVALID_ARGUMENT."""
        async with self._lock:
            new = data[max(self.written - offset, 0) :]
            if offset > self.written:
                raise invalid(f"Offset {offset} is beyond the {self.written} bytes written so far.")
            if self.is_closed and new:
                raise conflict("Standard input is closed.")
            try:
                if new:
                    await self._session.write(new)
                    self.written += len(new)
                if eof and not self.is_closed:
                    self.is_closed = True
                    await self._session.close_stdin()
            except (ProviderError, OSError) as error:
                raise conflict(f"Standard input cannot be written: {error}") from error


class ExecSession:
    """Reads the output of the command until it ends. `code` is None until then."""

    def __init__(self, session: Session, timeout: float | None) -> None:
        self.stdin = StandardInput(session)
        self.log = StreamLog()
        self.code: int | None = None
        self.changes = Changes()
        self._session = session
        self._timeout = timeout
        self._task = asyncio.create_task(self._run())

    async def resize(self, width: int, height: int) -> None:
        await self._session.resize(width, height)

    async def wait(self) -> int:
        await self.changes.until(lambda: self.code is not None)
        assert self.code is not None
        return self.code

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        code = _KILLED
        try:
            code = await self._outcome()
        finally:
            await self._session.close()
            self.log.end(time.time())
            self.code = code
            self.changes.notify()

    async def _outcome(self) -> int:
        try:
            async with asyncio.timeout(self._timeout):
                await self._copy_output()
                return await self._session.wait()
        except TimeoutError:
            await self._session.kill()
        except ProviderError:
            pass  # the sandbox ended, and the command with it
        return _KILLED

    async def _copy_output(self) -> None:
        async for piece in self._session.output():
            self.log.put(STDOUT if piece.stream == "stdout" else STDERR, piece.at, piece.data)
