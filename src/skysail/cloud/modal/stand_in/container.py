"""One container of a Function: the SDK's own entry point in a pod, and the service that its worker gives to it.

Requests of a container carry no task id and no token, so each container has a Unix socket of its own.
"""

from __future__ import annotations

import codecs
import socket
import sysconfig
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec
from google.protobuf.empty_pb2 import Empty
from grpclib.server import Server
from modal._utils.grpc_utils import custom_detail_codec
from modal_proto import api_grpc, api_pb2

from skysail.base import unix_sockets
from skysail.cloud.account import Member
from skysail.cloud.errors import ProviderError
from skysail.cloud.modal.stand_in.changes import Changes
from skysail.cloud.modal.stand_in.dispatch import Call, Dispatcher, Handler
from skysail.cloud.modal.stand_in.images import ImageConfig
from skysail.cloud.modal.stand_in.stream_log import STDERR, STDOUT, Line
from skysail.cloud.provider import (
    Container,
    Ended,
    File,
    HostPath,
    Mount,
    Pod,
    ProjectedFiles,
    Provider,
    ResourceLimits,
    Volume,
)
from skysail.cloud.simulated.programs import ProviderProgram

_HEARTBEAT_SECONDS = 14.0
_INTERFACE = "i6pn.modal.local"
_ARGUMENTS = "/__modal/arguments/container"
_PACKAGES = "/__modal/packages"
_SOCKET = "/__modal/worker/worker.sock"
_PID = "/tmp/.modal-pid"  # noqa: S108 (in the container)
_ROOT = "/root"
# Runs the unmodified entry point. The SDK comes last in the path, so that packages of the image win.
_LAUNCHER = f"""
import os, runpy, sys
sys.path.append({_PACKAGES!r})
with open({_PID!r}, "w") as file:
    file.write(str(os.getpid()))
runpy.run_module("modal._container_entrypoint", run_name="__main__", alter_sys=True)
"""
_INTERRUPT = ("sh", "-c", f"kill -INT $(cat {_PID})")
_MIB = 1024 * 1024


class ContainerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Description of a container. `files` have absolute paths. `folder` holds its socket, and is mounted."""

    task_id: str
    rank: int
    image: ImageConfig
    env: Mapping[str, str]
    files: tuple[File, ...]
    volumes: tuple[Volume, ...]
    mounts: tuple[Mount, ...]
    arguments: bytes
    limits: ResourceLimits
    folder: Path


class CallSide(Protocol):
    """The call that a container works on."""

    @property
    def input_id(self) -> str: ...

    @property
    def function_call_id(self) -> str: ...

    @property
    def input(self) -> api_pb2.FunctionInput: ...

    async def join(self, rank: int, address: str) -> api_pb2.TaskClusterHelloResponse:
        """Wait until all ranks have joined."""
        ...

    def put_output(self, rank: int, output: api_pb2.FunctionPutOutputsItem) -> None: ...


class FunctionContainer:
    """Runs one container. `failure` is why it could not start, as it reported itself.

    Subclasses give it inputs by `input_handlers`.
    """

    def __init__(self, spec: ContainerSpec, provider: Provider, now: Callable[[], float]) -> None:
        self.spec = spec
        self.failure: api_pb2.GenericResult | None = None
        self.started: float | None = None
        self.ended: float | None = None
        self._provider = provider
        self._now = now
        self._cancelled_inputs: list[str] = []
        self._changes = Changes()
        self._listener: socket.socket | None = None
        self._server: Server | None = None
        self._program: ProviderProgram | None = None

    @property
    def handlers(self) -> dict[str, Handler]:
        return {
            "ContainerHello": self._hello,
            "ContainerHeartbeat": self._heartbeat,
            "TaskResult": self._task_result,
            "VolumeCommit": self._volume_commit,
            "VolumeReload": self._hello,
            **self.input_handlers,
        }

    @property
    def _hosts(self) -> Path:
        """Return the container's /etc/hosts, which the container may write."""
        return self.spec.folder / "hosts"

    @property
    def input_handlers(self) -> dict[str, Handler]:
        raise NotImplementedError

    @property
    def program(self) -> ProviderProgram:
        assert self._program is not None, "the container was started"
        return self._program

    async def start(self, dispatcher: Dispatcher) -> None:
        """Start the worker's service, then the container. Raises errors of `cloud.errors`."""
        self.spec.folder.mkdir(mode=0o755, parents=True)
        path = self.spec.folder / "worker.sock"
        self._listener = unix_sockets.listen(path)
        path.chmod(0o666)  # root of the container is another user of the machine
        self._server = Server([dispatcher.bind(api_grpc.ModalClientBase)], status_details_codec=custom_detail_codec)
        await self._server.start(sock=self._listener)
        self._hosts.write_text("")
        self._hosts.chmod(0o666)
        pod = self._pod()
        address = await self._provider.create_sandbox(pod)
        self._hosts.write_text(f"127.0.0.1 localhost\n::1 localhost\n{address} modal\n::ffff:{address} {_INTERFACE}\n")
        member = Member(pod, self._container())
        self._program = ProviderProgram(self._provider, member, self._now)
        await self._program.start()
        self.started = self._now()

    async def wait(self) -> Ended:
        return await self.program.wait()

    def cancel_input(self, input_id: str) -> None:
        """Tell the container by its heartbeat that an input is cancelled."""
        self._cancelled_inputs.append(input_id)
        self._changes.notify()

    async def lines(self) -> AsyncIterator[Line]:
        """Yield the output of the program line by line, to its end."""
        buffers = {number: _LineBuffer() for number in (STDOUT, STDERR)}
        async for piece in self.program.output():
            number = STDOUT if piece.stream == "stdout" else STDERR
            for text in buffers[number].add(piece.data):
                yield Line(piece.at, number, text)
        for number, rest in buffers.items():
            for text in rest.end():
                yield Line(self._now(), number, text)

    async def interrupt(self) -> None:
        """Send the entry point an interrupt, as the service does before it takes a container away."""
        try:
            session = await self._provider.exec(self.program.run, _INTERRUPT, stdin=False, tty=False)
            await session.wait()
            await session.close()
        except ProviderError:
            return  # it has ended already

    async def kill(self) -> None:
        if self._program is not None:
            await self._program.stop(0.0)

    async def remove(self) -> None:
        """Remove the pod with all its processes, and the worker's service."""
        if self._program is not None:
            await self._program.remove_sandbox()
        if self._server is not None:
            self._server.close()
        if self._listener is not None:
            self._listener.close()
        self.ended = self._now()

    async def _hello(self, _request: object, _: Call) -> Empty:
        return Empty()

    async def _heartbeat(self, _request: object, _: Call) -> api_pb2.ContainerHeartbeatResponse:
        """Answer late, or at once when an input is cancelled."""
        reply = api_pb2.ContainerHeartbeatResponse()
        if await self._changes.until(lambda: bool(self._cancelled_inputs), _HEARTBEAT_SECONDS):
            cancelled, self._cancelled_inputs = self._cancelled_inputs, []
            reply.cancel_input_event.input_ids.extend(cancelled)
        return reply

    async def _task_result(self, request: api_pb2.TaskResultRequest, _: Call) -> Empty:
        self.failure = request.result
        return Empty()

    async def _volume_commit(self, _request: object, _: Call) -> api_pb2.VolumeCommitResponse:
        return api_pb2.VolumeCommitResponse()

    def _pod(self) -> Pod:
        spec = self.spec
        own = (
            Volume("arguments", ProjectedFiles((File("container", spec.arguments),))),
            Volume("packages", HostPath(sysconfig.get_paths()["purelib"])),
            Volume("worker", HostPath(str(spec.folder))),
            Volume("hosts", HostPath(str(self._hosts))),
            Volume("code", ProjectedFiles(tuple(_numbered(spec.files)))),
        )
        return Pod(
            uid=str(uuid.uuid5(uuid.NAMESPACE_URL, spec.task_id)),
            namespace="modal",
            name=spec.task_id.lower(),
            hostname="modal",
            volumes=(*own, *spec.volumes),
        )

    def _container(self) -> Container:
        spec = self.spec
        own = (
            Mount(volume="arguments", path=str(Path(_ARGUMENTS).parent), read_only=True),
            Mount(volume="packages", path=_PACKAGES, read_only=True),
            Mount(volume="worker", path=str(Path(_SOCKET).parent)),
            Mount(volume="hosts", path="/etc/hosts"),
        )
        code = (
            Mount(volume="code", path=file.path, sub_path=str(number), read_only=True)
            for number, file in enumerate(spec.files)
        )
        env = {
            **dict(spec.image.env),
            "PYTHONUNBUFFERED": "1",
            **spec.env,
            "PYTHONPATH": ":".join(filter(None, (_ROOT, spec.env.get("PYTHONPATH", "")))),
            "MODAL_IS_REMOTE": "1",
            "MODAL_SERVER_URL": f"unix://{_SOCKET}",
            "MODAL_TASK_ID": spec.task_id,
            "MODAL_CONTAINER_ARGUMENTS_PATH": _ARGUMENTS,
            "MODAL_CLOUD_PROVIDER": "CLOUD_PROVIDER_AWS",
        }
        return Container(
            name="main",
            image=spec.image.tag,
            command=("python", "-c", _LAUNCHER),
            env=tuple(env.items()),
            working_dir=_ROOT,
            mounts=(*own, *code, *spec.mounts),
            limits=spec.limits,
        )


class CallContainer(FunctionContainer):
    """A container that works on one call. `output` is what it reported itself."""

    def __init__(self, spec: ContainerSpec, provider: Provider, call: CallSide, now: Callable[[], float]) -> None:
        super().__init__(spec, provider, now)
        self.output: api_pb2.FunctionPutOutputsItem | None = None
        self._call = call
        self._has_input = False

    @property
    def input_handlers(self) -> dict[str, Handler]:
        return {
            "TaskClusterHello": self._cluster_hello,
            "FunctionGetInputs": self._get_inputs,
            "FunctionPutOutputs": self._put_outputs,
        }

    async def _cluster_hello(
        self, request: api_pb2.TaskClusterHelloRequest, _: Call
    ) -> api_pb2.TaskClusterHelloResponse:
        return await self._call.join(self.spec.rank, request.container_ip)

    async def _get_inputs(
        self, _request: api_pb2.FunctionGetInputsRequest, _: Call
    ) -> api_pb2.FunctionGetInputsResponse:
        """Give the input of the call once. Then the container is told to leave."""
        if self._has_input:
            item = api_pb2.FunctionGetInputsItem(kill_switch=True)
        else:
            self._has_input = True
            item = api_pb2.FunctionGetInputsItem(
                input_id=self._call.input_id,
                function_call_id=self._call.function_call_id,
                input=self._call.input,
                function_call_invocation_type=api_pb2.FUNCTION_CALL_INVOCATION_TYPE_ASYNC,
            )
        return api_pb2.FunctionGetInputsResponse(inputs=[item])

    async def _put_outputs(self, request: api_pb2.FunctionPutOutputsRequest, _: Call) -> Empty:
        self.output = request.outputs[0]
        self._call.put_output(self.spec.rank, request.outputs[0])
        return Empty()


def limits(resources: api_pb2.Resources) -> ResourceLimits:
    return ResourceLimits(memory=resources.memory_mb_max * _MIB or None)


def _numbered(files: tuple[File, ...]) -> list[File]:
    """Return the files under names that cannot collide, whatever their paths are."""
    return [File(str(number), file.content, file.mode) for number, file in enumerate(files)]


class _LineBuffer:
    """Cuts output into lines. Bytes that are not UTF-8 are replaced."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""

    def add(self, data: bytes) -> list[str]:
        *lines, self._rest = (self._rest + self._decoder.decode(data)).split("\n")
        return [f"{line}\n" for line in lines]

    def end(self) -> list[str]:
        rest = self._rest + self._decoder.decode(b"", final=True)
        return [rest] if rest else []
