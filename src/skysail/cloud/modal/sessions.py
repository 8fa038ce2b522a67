"""Sessions in a sandbox: commands beside the program, the program's own input, and connections to ports."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import modal
from modal import exception
from yarl import URL

from skysail.cloud.errors import Gone, OutcomeUnknown, ProviderError, Rejected, Unsupported
from skysail.cloud.http_address import HttpAddress
from skysail.cloud.modal import errors, internals, lifetime, scripts
from skysail.cloud.modal.connection import Connection
from skysail.cloud.modal.inventory import SandboxInventory, detach
from skysail.cloud.modal.output import SandboxOutput
from skysail.cloud.provider import Output, Session

_CALL_SECONDS = 30.0
_HELPER_SECONDS = 20.0
# Less than callers wait for a connection, so that they get the reason.
_DIAL_SECONDS = 15.0
_KILL_SECONDS = 4.0
_CHUNK = 64 * 1024
_MAX_PENDING = 256
_SIGNAL_BASE = 128
# Modal does not say how long a token is valid.
_TOKEN_SECONDS = 1800.0
_LOOPBACK = frozenset({"127.0.0.1", "localhost"})
_BROKEN = "The connection to the port broke, so its last bytes may be missing."

_HasEnded = Callable[[], Awaitable[bool]]

log = logging.getLogger(__name__)


class ExecSession:
    """A command beside the program."""

    def __init__(
        self, sandbox: modal.Sandbox, process: Any, nonce: str, *, has_tty: bool, has_ended: _HasEnded
    ) -> None:
        self._sandbox = sandbox
        self._process = process
        self._has_ended = has_ended
        self._nonce = nonce
        self._has_tty = has_tty
        self._is_closed = False
        self._failure: ProviderError | None = None

    async def write(self, data: bytes) -> None:
        try:
            for start in range(0, len(data), _CHUNK):
                self._process.stdin.write(data[start : start + _CHUNK])
                await lifetime.while_running(self._process.stdin.drain.aio(), self._has_ended)
        except errors.SDK_ERRORS as error:
            raise errors.of_read(error) from error

    async def close_stdin(self) -> None:
        try:
            self._process.stdin.write_eof()
            await errors.bounded(self._process.stdin.drain.aio(), _CALL_SECONDS, "close the input of a command")
        except errors.SDK_ERRORS as error:
            raise errors.of_read(error) from error

    async def output(self) -> AsyncIterator[Output]:
        """Yield the output. Raises an error of `cloud.errors` if it broke off: a copied file would be incomplete."""
        queue: asyncio.Queue[Output | None] = asyncio.Queue(_MAX_PENDING)
        streams: tuple[internals.Stream, ...] = ("stdout",) if self._has_tty else ("stdout", "stderr")
        tasks = [asyncio.ensure_future(self._copy(stream, queue)) for stream in streams]
        try:
            ended = 0
            while ended < len(tasks):
                piece = await queue.get()
                if piece is None:
                    ended += 1
                else:
                    yield piece
            if self._failure is not None:
                raise self._failure
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def resize(self, width: int, height: int) -> None:
        await run_helper(self._sandbox, scripts.resize_exec(self._nonce, width, height))

    async def wait(self) -> int:
        try:
            code: int = await lifetime.while_running(self._process.wait.aio(), self._has_ended)
        except errors.SDK_ERRORS as error:
            raise errors.of_read(error) from error
        return code if code >= 0 else _SIGNAL_BASE - code

    async def kill(self) -> None:
        await run_helper(self._sandbox, scripts.signal_exec(self._nonce, "KILL"))

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._has_tty:
            await run_helper(self._sandbox, scripts.signal_exec(self._nonce, "HUP"))
        await detach(self._sandbox)

    async def _copy(self, stream: internals.Stream, queue: asyncio.Queue[Output | None]) -> None:
        reader = aiter(self._process.stdout if stream == "stdout" else self._process.stderr)
        try:
            while (data := await lifetime.while_running(anext(reader, None), self._has_ended)) is not None:
                await queue.put(Output(stream, time.time(), data))
        except (ProviderError, *errors.SDK_ERRORS) as error:
            failure = error if isinstance(error, ProviderError) else errors.of_read(error)
            # A command ends with its sandbox.
            self._failure = None if isinstance(failure, Gone) else failure
            log.debug("output of a command at modal broke", extra={"why": str(failure)})
        await queue.put(None)


class AttachedSession:
    """The program itself: its output from now on, and its input."""

    def __init__(self, sandbox: modal.Sandbox, output: SandboxOutput, has_ended: _HasEnded) -> None:
        self._sandbox = sandbox
        self._output = output
        self._has_ended = has_ended

    async def write(self, data: bytes) -> None:
        try:
            for start in range(0, len(data), _CHUNK):
                self._sandbox.stdin.write(data[start : start + _CHUNK])
                await lifetime.while_running(self._sandbox.stdin.drain.aio(), self._has_ended)
        except errors.SDK_ERRORS as error:
            raise errors.of_read(error) from error

    async def close_stdin(self) -> None:
        try:
            self._sandbox.stdin.write_eof()
            await errors.bounded(self._sandbox.stdin.drain.aio(), _CALL_SECONDS, "close the input of the program")
        except errors.SDK_ERRORS as error:
            raise errors.of_read(error) from error

    def output(self) -> AsyncIterator[Output]:
        return self._output.tail(self._sandbox.object_id)

    async def resize(self, width: int, height: int) -> None:
        """Do nothing: Modal cannot resize the terminal of a program."""

    async def wait(self) -> int:
        try:
            waiting = self._sandbox.wait.aio(raise_on_termination=False)
            await lifetime.while_running(waiting, self._has_ended)
        except exception.SandboxTimeoutError:
            log.debug("attached sandbox ended at its deadline", extra={"instance": self._sandbox.object_id})
        except errors.SDK_ERRORS as error:
            raise errors.of_read(error) from error
        return self._sandbox.returncode or 0

    async def kill(self) -> None:
        """Do nothing: an attached program goes on."""

    async def close(self) -> None:
        await detach(self._sandbox)


class RelayConnection:
    """A connection to a port, carried by a command in the sandbox. `first` was read with the relay's greeting."""

    def __init__(self, session: ExecSession, pieces: AsyncIterator[Output], first: bytes) -> None:
        self._session = session
        self._pieces = pieces
        self._first = first
        self._has_ended = False

    async def read(self) -> bytes:
        if self._first:
            first, self._first = self._first, b""
            return first
        async for piece in self._pieces:
            if piece.stream == "stdout":
                return piece.data
        await self._check_end()
        return b""

    async def write(self, data: bytes) -> None:
        await self._session.write(data)

    async def write_eof(self) -> None:
        await self._session.close_stdin()

    async def _check_end(self) -> None:
        """Raise OutcomeUnknown if the relay did not see the end of the connection: it dies with its sandbox."""
        if self._has_ended:
            return
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                code = await self._session.wait()
        except (ProviderError, TimeoutError) as error:
            raise OutcomeUnknown(f"{_BROKEN} ({error})") from error
        if code:
            raise OutcomeUnknown(_BROKEN)
        self._has_ended = True

    async def close(self) -> None:
        with contextlib.suppress(ProviderError, TimeoutError):
            async with asyncio.timeout(_KILL_SECONDS):
                await self._session.kill()
        await self._pieces.aclose()  # type: ignore[attr-defined]
        await self._session.close()


class SandboxSessions:
    """Opens sessions in running sandboxes."""

    def __init__(self, connection: Connection, inventory: SandboxInventory, output: SandboxOutput) -> None:
        self._connection = connection
        self._inventory = inventory
        self._output = output

    async def exec(self, sandbox_id: str, command: tuple[str, ...], *, tty: bool) -> ExecSession:
        """Start a command. Raises Rejected if it cannot start, Gone if the sandbox does not run."""
        sandbox, nonce = await self._open(sandbox_id), secrets.token_hex(8)
        try:
            starting = sandbox.exec.aio(*command, text=False, pty=tty, env={scripts.EXEC_VARIABLE: nonce})
            process = await errors.bounded(starting, _CALL_SECONDS, "start a command")
        except (exception.NotFoundError, exception.InvalidError, exception.ExecutionError) as error:
            await detach(sandbox)
            raise Rejected("CommandNotStarted", f"{command[0]} cannot be started: {errors.text(error)}.") from error
        except errors.SDK_ERRORS as error:
            await detach(sandbox)
            raise errors.of_read(error) from error
        has_ended = partial(self._inventory.has_ended, sandbox_id, lifetime.LISTING_SECONDS)
        return ExecSession(sandbox, process, nonce, has_tty=tty, has_ended=has_ended)

    async def attach(self, sandbox_id: str) -> Session:
        sandbox = await self._open(sandbox_id)
        return AttachedSession(
            sandbox, self._output, partial(self._inventory.has_ended, sandbox_id, lifetime.LISTING_SECONDS)
        )

    async def dial(self, sandbox_id: str, port: int) -> RelayConnection:
        """Connect to a port on the loopback interface of the sandbox.

        Raises Rejected if no program listens, Unsupported if the image has no program that can carry a connection.
        """
        session = await self.exec(sandbox_id, scripts.relay(port), tty=False)
        pieces = session.output()
        try:
            async with asyncio.timeout(_DIAL_SECONDS):
                async for piece in pieces:
                    if piece.stream == "stdout" and piece.data.startswith(scripts.CONNECTED):
                        return RelayConnection(session, pieces, piece.data[len(scripts.CONNECTED) :])
                code = await session.wait()
        except TimeoutError as error:
            await RelayConnection(session, pieces, b"").close()
            raise OutcomeUnknown(f"Modal did not connect to port {port} in {_DIAL_SECONDS:.0f} seconds.") from error
        except BaseException:
            # Also if the caller has gone away: the relay would run on in the sandbox.
            await RelayConnection(session, pieces, b"").close()
            raise
        await session.close()
        if code == scripts.REFUSED_CODE:
            raise Rejected("PortClosed", f"No program listens on port {port} of the sandbox.")
        raise Unsupported("The image needs a shell and python3, nc or socat for connections to its ports.")

    async def http_address(self, sandbox_id: str, port: int) -> HttpAddress:
        """Return the URL of an HTTP server in the sandbox, with a token. Nothing is opened to callers without it."""
        sandbox = await self._open(sandbox_id)
        try:
            creating = sandbox.create_connect_token.aio(port=port)
            created = await errors.bounded(creating, _CALL_SECONDS, "create a connect token")
        except errors.SDK_ERRORS as error:
            raise errors.of_read(error) from error
        finally:
            await detach(sandbox)
        return HttpAddress(
            url=created.url,
            headers=(("Authorization", f"Bearer {created.token}"),),
            expires=time.time() + _TOKEN_SECONDS,
            verifies=URL(created.url).host not in _LOOPBACK,
        )

    async def stop_program(self, sandbox_id: str, claim: str) -> bool:
        """Send SIGTERM to the program. Returns False if the image cannot do that."""
        try:
            sandbox = await self._open(sandbox_id)
        except ProviderError:
            return False
        try:
            return await run_helper(sandbox, scripts.stop_program(claim))
        finally:
            await detach(sandbox)

    async def _open(self, sandbox_id: str) -> modal.Sandbox:
        client = await self._connection.client()
        try:
            looking_up = modal.Sandbox.from_id.aio(sandbox_id, client=client)
            sandbox = await errors.bounded(looking_up, _CALL_SECONDS, "look up a sandbox")
        except errors.SDK_ERRORS as error:
            raise errors.of_read(error) from error
        if await internals.result(sandbox) is not None:
            await detach(sandbox)
            raise Gone(f"Sandbox {sandbox_id} has ended.")
        return sandbox


async def run_helper(sandbox: modal.Sandbox, command: tuple[str, ...]) -> bool:
    """Run a short command in the sandbox. Returns whether it succeeded."""
    try:
        process = await errors.bounded(sandbox.exec.aio(*command, text=False), _CALL_SECONDS, "start a command")
        return await errors.bounded(process.wait.aio(), _HELPER_SECONDS, "end a command") == 0
    except errors.SDK_ERRORS as error:
        log.debug("helper in sandbox failed", extra={"instance": sandbox.object_id, "why": errors.text(error)})
        return False
