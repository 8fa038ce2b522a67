"""The stand-in as a whole: its state, its servers, and what tests look at."""

from __future__ import annotations

import socket
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from grpclib.server import Server
from modal._utils.grpc_utils import custom_detail_codec
from modal_proto import api_grpc, api_pb2, task_command_router_grpc

from skysail.cloud.modal.stand_in.accounting import Accounting
from skysail.cloud.modal.stand_in.apps import AppStore
from skysail.cloud.modal.stand_in.calls import CallService, CallServiceDependencies
from skysail.cloud.modal.stand_in.connections import Connections
from skysail.cloud.modal.stand_in.container_specs import ContainerSpecs
from skysail.cloud.modal.stand_in.dispatch import Call, CallLog, Dispatcher, Handler
from skysail.cloud.modal.stand_in.faults import FaultScript
from skysail.cloud.modal.stand_in.functions import FunctionStore
from skysail.cloud.modal.stand_in.images import FindImage, ImageStore
from skysail.cloud.modal.stand_in.logs import LogRecord, LogService
from skysail.cloud.modal.stand_in.mounts import MountStore
from skysail.cloud.modal.stand_in.program import SandboxPrograms
from skysail.cloud.modal.stand_in.router import CommandRouter
from skysail.cloud.modal.stand_in.sandboxes import SandboxOptions, SandboxService, SandboxServiceDependencies
from skysail.cloud.modal.stand_in.secret_store import SecretStore
from skysail.cloud.modal.stand_in.stream_log import Line
from skysail.cloud.modal.stand_in.tokens import Credentials, TokenIssuer
from skysail.cloud.modal.stand_in.volume_store import VolumeStore
from skysail.cloud.modal.stand_in.web_function import WebDependencies
from skysail.cloud.modal.stand_in.web_gateway import WebGateway
from skysail.cloud.modal.stand_in.web_service import WebService, WebServiceDependencies
from skysail.cloud.modal.stand_in.workspace import Workspace
from skysail.cloud.provider import Provider
from skysail.cloud.simulated.ledger import Ledger


class StandInConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of the stand-in.

    `tls` is for the task command router and the tunnels, which the SDK reaches by TCP; its certificate must be valid
    for 127.0.0.1. `make_disk` and `remove_disk` are those of the provider's persistent disks.
    Below `workers` are the sockets of Functions' containers: the provider must allow to mount them, and the folder of
    our own Python packages, which has the SDK.
    `report_port` gets each port of 127.0.0.1 that the stand-in opens.
    """

    credentials: Credentials
    provider: Provider
    ledger: Ledger
    tls: ssl.SSLContext
    find_image: FindImage
    make_disk: Callable[[str], None]
    remove_disk: Callable[[str], None]
    options: SandboxOptions = SandboxOptions()
    workers: Path
    faults_file: Path | None = None
    report_port: Callable[[int], None] = lambda _: None


class ModalStandIn:
    """Serves the control plane on a Unix socket, and the task command router on a TLS port of 127.0.0.1.

    `unknown_calls` are RPCs and fields that the stand-in does not know: a test must find it empty.
    """

    def __init__(self, config: StandInConfig) -> None:
        self.faults = FaultScript(config.faults_file)
        self.log = CallLog()
        self.ledger = config.ledger
        self.connections = Connections()
        self._config = config
        self._tokens = TokenIssuer(config.credentials)
        self._accounting = Accounting(config.ledger, time.time)
        self.apps = AppStore()
        self.secrets = SecretStore()
        self._volumes = VolumeStore(config.make_disk, config.remove_disk)
        self._images = ImageStore(config.find_image, self.secrets)
        deps = SandboxServiceDependencies(
            apps=self.apps,
            images=self._images,
            secrets=self.secrets,
            programs=SandboxPrograms(config.provider, self._volumes, time.time),
            accounting=self._accounting,
            tokens=self._tokens,
            log=self.log,
            tls=config.tls,
            report_port=config.report_port,
        )
        self.sandboxes = SandboxService(deps, config.options)
        self._mounts = MountStore()
        self._functions = FunctionStore(self.apps, self.log)
        self._folder = tempfile.TemporaryDirectory(prefix="modal-")
        self._specs = ContainerSpecs(
            functions=self._functions,
            images=self._images,
            secrets=self.secrets,
            volumes=self._volumes,
            mounts=self._mounts,
        )
        self.calls = CallService(self._call_dependencies())
        self.web = WebService(self._web_dependencies())
        self.calls.other_containers.append(self.web.containers)
        self._logs = LogService(self.apps, self.sandboxes)
        self._logs.sources += [self.calls.records, self._build_records]
        self._router = CommandRouter(self.sandboxes, self.secrets, self._tokens)
        self._servers: list[Server] = []

    @property
    def unknown_calls(self) -> list[str]:
        return self.log.unknown_calls

    async def start(self, listener: socket.socket) -> None:
        """Serve this listening Unix socket."""
        folder = Path(self._folder.name)
        control = self._dispatcher(self._handlers(), self._authenticate).bind(api_grpc.ModalClientBase)
        router = self._router_dispatcher().bind(task_command_router_grpc.TaskCommandRouterBase)
        for name, service in (("control.sock", control), ("router.sock", router)):
            server = Server([service], status_details_codec=custom_detail_codec)
            await server.start(path=str(folder / name))
            self._servers.append(server)
        port = await self.connections.listen_with_tls(self._config.tls, folder / "router.sock")
        self._config.report_port(port)
        self.sandboxes.router_url = f"https://127.0.0.1:{port}"
        await self.connections.listen_on_socket(listener, folder / "control.sock")

    async def close(self) -> None:
        await self.connections.close()
        await self._router.close()
        await self.sandboxes.close()
        await self.calls.close()
        await self.web.close()
        await self._images.close()
        for server in self._servers:
            server.close()
        self._folder.cleanup()
        self.ledger.close()

    def _handlers(self) -> dict[str, Handler]:
        return {
            **Workspace(self._tokens).handlers,
            **self.apps.handlers,
            **self.secrets.handlers,
            **self._volumes.handlers,
            **self._images.handlers,
            **self.sandboxes.handlers,
            **self._mounts.handlers,
            **self._functions.handlers,
            **self.calls.handlers,
            **self.web.handlers,
            **self._logs.handlers,
            "SandboxStdinWrite": self._write_stdin,
        }

    def _call_dependencies(self) -> CallServiceDependencies:
        return CallServiceDependencies(
            apps=self.apps,
            functions=self._functions,
            specs=self._specs,
            provider=self._config.provider,
            accounting=self._accounting,
            dispatcher=lambda handlers: self._dispatcher(handlers, _trust),
            folder=self._config.workers,
        )

    def _web_dependencies(self) -> WebServiceDependencies:
        tokens: dict[str, str] = {}
        gateway = WebGateway(self._config.tls, self.faults, tokens)
        gateway.report_port = self._config.report_port
        web = WebDependencies(
            provider=self._config.provider,
            accounting=self._accounting,
            now=time.time,
            dispatcher=lambda handlers: self._dispatcher(handlers, _trust),
            record_line=self._record_web_line,
            may_start=lambda: self.web.has_room,
            folder=self._config.workers,
        )
        return WebServiceDependencies(
            apps=self.apps, functions=self._functions, specs=self._specs, gateway=gateway, tokens=tokens, web=web
        )

    def _build_records(self) -> Iterator[LogRecord]:
        for app_id, task_id, line in self._images.build_lines():
            yield LogRecord(line=line, app_id=app_id, task_id=task_id)

    def _record_web_line(self, app_id: str, function_id: str, task_id: str, line: Line) -> None:
        self.calls.add_record(LogRecord(line=line, app_id=app_id, task_id=task_id, function_id=function_id))

    async def _write_stdin(
        self, request: api_pb2.SandboxStdinWriteRequest, _: Call
    ) -> api_pb2.SandboxStdinWriteResponse:
        """Write to the program of a V1 sandbox. The index counts messages, and each arrives once."""
        sandbox = self.sandboxes.find(request.sandbox_id, 1)
        await self._router.write_stdin(sandbox, None, request.input, eof=request.eof)
        return api_pb2.SandboxStdinWriteResponse()

    def _authenticate(self, call: Call) -> None:
        self._tokens.authenticate(call.metadata)

    def _dispatcher(self, handlers: dict[str, Handler], authenticate: Callable[[Call], None]) -> Dispatcher:
        return Dispatcher(
            handlers, log=self.log, authenticate=authenticate, script=self.faults, connections=self.connections
        )

    def _router_dispatcher(self) -> Dispatcher:
        return Dispatcher(
            self._router.handlers,
            log=self.log,
            authenticate=self._router.authenticate,
            script=self.faults,
            connections=self.connections,
            stream_handlers=self._router.stream_handlers,
        )


def _trust(_: Call) -> None:
    """Accept a call of a container: only that container can reach its socket."""
