"""The task command router: output and standard input of sandboxes, commands in them, and their readiness."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from grpclib import GRPCError, Status
from grpclib.server import Stream
from modal_proto import task_command_router_pb2 as router_pb2

from skysail.cloud.errors import Gone, ProviderError, Rejected
from skysail.cloud.modal.stand_in.dispatch import Call, Handler, StreamHandler
from skysail.cloud.modal.stand_in.errors import conflict, invalid, not_found, unauthenticated
from skysail.cloud.modal.stand_in.exec_session import ExecSession, StandardInput
from skysail.cloud.modal.stand_in.sandbox import Sandbox
from skysail.cloud.modal.stand_in.sandboxes import SandboxService
from skysail.cloud.modal.stand_in.secret_store import SecretStore
from skysail.cloud.modal.stand_in.stream_log import STDERR, STDOUT
from skysail.cloud.modal.stand_in.tokens import TokenIssuer

_CHDIR = 'cd "$0" && exec "$@"'
_PROBE_SECONDS = 0.1
_STDOUT = (router_pb2.SANDBOX_STDIO_FILE_DESCRIPTOR_STDOUT, router_pb2.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDOUT)


class CommandRouter:
    def __init__(self, sandboxes: SandboxService, secrets: SecretStore, tokens: TokenIssuer) -> None:
        self._sandboxes = sandboxes
        self._secrets = secrets
        self._tokens = tokens
        self._execs: dict[tuple[str, str], ExecSession] = {}
        self._starting: dict[tuple[str, str], asyncio.Lock] = {}
        self._inputs: dict[str, StandardInput] = {}

    @property
    def handlers(self) -> dict[str, Handler]:
        return {
            "SandboxStdioReadV2": self._stdio,
            "SandboxStdinWriteV2": self._stdin,
            "SandboxWaitUntilReady": self._ready,
            "TaskExecStart": self._exec_start,
            "TaskExecStdioRead": self._exec_stdio,
            "TaskExecStdinWrite": self._exec_stdin,
            "TaskExecStdinStatus": self._exec_stdin_status,
            "TaskExecPoll": self._exec_poll,
            "TaskExecWait": self._exec_wait,
        }

    @property
    def stream_handlers(self) -> dict[str, StreamHandler]:
        return {"TaskExecStdinWriteStream": self._exec_stdin_stream}

    def authenticate(self, call: Call) -> None:
        """Require a bearer token. Which task it is for is checked when the request is known."""
        if not _bearer(call):
            raise unauthenticated(f"{call.rpc} needs a bearer token.")

    async def close(self) -> None:
        for session in self._execs.values():
            await session.close()

    async def write_stdin(self, sandbox: Sandbox, offset: int | None, data: bytes, *, eof: bool) -> None:
        """Write to the program of a sandbox. Without an offset, after what was written before."""
        if not await sandbox.until_started():
            raise conflict(f"Sandbox {sandbox.spec.id} has finished.")
        stdin = self._inputs.get(sandbox.spec.id)
        if stdin is None:
            try:
                session = await sandbox.program.provider.attach(sandbox.program.run, stdin=True)
            except ProviderError as error:
                raise conflict(str(error)) from error
            stdin = self._inputs.setdefault(sandbox.spec.id, StandardInput(session))
        await stdin.write(stdin.written if offset is None else offset, data, eof=eof)

    async def _stdio(
        self, request: router_pb2.SandboxStdioReadV2Request, call: Call
    ) -> AsyncIterator[router_pb2.SandboxStdioReadV2Response]:
        sandbox = self._sandbox(request.task_id, call)
        async for start, data in sandbox.log.read(_descriptor(request.file_descriptor), request.offset):
            yield router_pb2.SandboxStdioReadV2Response(data=data, starting_offset=start)

    async def _stdin(
        self, request: router_pb2.SandboxStdinWriteV2Request, call: Call
    ) -> router_pb2.SandboxStdinWriteV2Response:
        sandbox = self._sandbox(request.task_id, call)
        await self.write_stdin(sandbox, request.offset, request.data, eof=request.eof)
        return router_pb2.SandboxStdinWriteV2Response()

    async def _ready(
        self, request: router_pb2.SandboxWaitUntilReadyTcrRequest, call: Call
    ) -> router_pb2.SandboxWaitUntilReadyTcrResponse:
        sandbox = self._sandbox(request.task_id, call)
        probe = sandbox.spec.definition.readiness_probe
        if not sandbox.spec.definition.HasField("readiness_probe"):
            raise conflict("The sandbox has no readiness probe.")
        interval = probe.interval_ms / 1000 or _PROBE_SECONDS
        try:
            async with asyncio.timeout(request.timeout):
                while sandbox.ready_at is None:
                    if not await sandbox.until_started() or not sandbox.is_running:
                        raise conflict(f"Sandbox {sandbox.spec.id} has finished.")
                    if await self._is_ready(sandbox):
                        sandbox.ready_at = time.time()
                    else:
                        await asyncio.sleep(interval)
        except TimeoutError as error:
            raise GRPCError(Status.DEADLINE_EXCEEDED, "The sandbox is not ready.") from error
        return router_pb2.SandboxWaitUntilReadyTcrResponse(ready_at=sandbox.ready_at)

    async def _is_ready(self, sandbox: Sandbox) -> bool:
        probe, program = sandbox.spec.definition.readiness_probe, sandbox.program
        try:
            if probe.HasField("tcp_port"):
                await (await program.provider.connect(program.run.pod, probe.tcp_port)).close()
                return True
            command = tuple(probe.exec_command.argv)
            session = ExecSession(await program.provider.exec(program.run, command, stdin=False, tty=False), None)
            return await session.wait() == 0
        except ProviderError:
            return False

    async def _exec_start(
        self, request: router_pb2.TaskExecStartRequest, call: Call
    ) -> router_pb2.TaskExecStartResponse:
        sandbox, key = self._sandbox(request.task_id, call), (request.task_id, request.exec_id)
        if request.container_id:
            raise not_found(f"Container {request.container_id}")
        if not request.command_args:
            raise invalid("A command is required.")
        async with self._starting.setdefault(key, asyncio.Lock()):
            if key not in self._execs:
                self._execs[key] = await self._started(sandbox, request)
        return router_pb2.TaskExecStartResponse()

    async def _started(self, sandbox: Sandbox, request: router_pb2.TaskExecStartRequest) -> ExecSession:
        if not await sandbox.until_started() or not sandbox.is_running:
            raise not_found(f"Task {request.task_id}: it has finished")
        env = self._secrets.from_sources(list(request.secret_sources)) | dict(request.env)
        for secret_id in request.secret_ids:
            env |= self._secrets.values(secret_id)
        pty, program = request.pty_info, sandbox.program
        try:
            session = await program.provider.exec(program.run, _command(request, env), stdin=True, tty=pty.enabled)
        except Gone as error:
            raise not_found(f"Task {request.task_id}: {error}") from error
        except Rejected as error:
            raise invalid(str(error)) from error
        except ProviderError as error:
            raise conflict(str(error)) from error
        opened = ExecSession(session, float(request.timeout_secs) if request.timeout_secs else None)
        if pty.enabled and pty.winsz_cols and pty.winsz_rows:
            await opened.resize(pty.winsz_cols, pty.winsz_rows)
        return opened

    async def _exec_stdio(
        self, request: router_pb2.TaskExecStdioReadRequest, call: Call
    ) -> AsyncIterator[router_pb2.TaskExecStdioReadResponse]:
        session = self._exec(request, call)
        async for _, data in session.log.read(_descriptor(request.file_descriptor), request.offset):
            yield router_pb2.TaskExecStdioReadResponse(data=data)

    async def _exec_stdin(
        self, request: router_pb2.TaskExecStdinWriteRequest, call: Call
    ) -> router_pb2.TaskExecStdinWriteResponse:
        await self._exec(request, call).stdin.write(request.offset, request.data, eof=request.eof)
        return router_pb2.TaskExecStdinWriteResponse()

    async def _exec_stdin_status(
        self, request: router_pb2.TaskExecStdinStatusRequest, call: Call
    ) -> router_pb2.TaskExecStdinStatusResponse:
        stdin = self._exec(request, call).stdin
        return router_pb2.TaskExecStdinStatusResponse(num_bytes_written=stdin.written, closed=stdin.is_closed)

    async def _exec_stdin_stream(self, stream: Stream[Any, Any], call: Call) -> None:
        first = await stream.recv_message()
        if first is None or not first.HasField("start"):
            raise invalid("The first message must start the stream.")
        stdin, offset = self._exec(first.start, call).stdin, first.start.offset
        async for message in stream:
            if message.HasField("end"):
                await stdin.write(offset, b"", eof=True)
                break
            await stdin.write(offset, message.data, eof=False)
            offset += len(message.data)
        await stream.send_message(router_pb2.TaskExecStdinWriteStreamResponse())

    async def _exec_poll(self, request: router_pb2.TaskExecPollRequest, call: Call) -> router_pb2.TaskExecPollResponse:
        code = self._exec(request, call).code
        return router_pb2.TaskExecPollResponse() if code is None else router_pb2.TaskExecPollResponse(code=code)

    async def _exec_wait(self, request: router_pb2.TaskExecWaitRequest, call: Call) -> router_pb2.TaskExecWaitResponse:
        return router_pb2.TaskExecWaitResponse(code=await self._exec(request, call).wait())

    def _exec(self, request: Any, call: Call) -> ExecSession:
        self._sandbox(request.task_id, call)
        session = self._execs.get((request.task_id, request.exec_id))
        if session is None:
            raise not_found(f"Exec {request.exec_id}")
        return session

    def _sandbox(self, task_id: str, call: Call) -> Sandbox:
        self._tokens.verify(_bearer(call), task_id)
        return self._sandboxes.by_task(task_id)


def _bearer(call: Call) -> str:
    return str(call.metadata.get("authorization", "")).removeprefix("Bearer ").strip()


def _descriptor(descriptor: int) -> int:
    return STDOUT if descriptor in _STDOUT else STDERR


def _command(request: router_pb2.TaskExecStartRequest, env: dict[str, str]) -> tuple[str, ...]:
    """Return the command with its variables and its folder, which a provider's `exec` does not take."""
    command = tuple(request.command_args)
    if request.workdir:
        command = ("sh", "-c", _CHDIR, request.workdir, *command)
    return ("env", *(f"{name}={value}" for name, value in env.items()), *command) if env else command
