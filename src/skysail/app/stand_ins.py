"""Stand-ins for clouds in the local cluster: the real service's protocol, with sandboxes of node `local` behind it.

The node agent listens for each stand-in on a Unix socket below `stand-ins/` in the home folder, and loads a stand-in
when its first client connects: a cluster that uses none pays nothing. `environment` returns the variables that point an
unmodified SDK, or an operator, to a stand-in. `skysail up --stand-in modal` starts the operator with them, so that it
opens its real account instead of the simulated one. `skysail dev modal` prints them for your own programs.

A stand-in has a ledger, `stand-ins/<cloud>.jsonl`, and reads its fault script from `stand-ins/<cloud>-faults.json`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
import socket
import ssl
import sysconfig
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec.structs import replace

from skysail.base import unix_sockets
from skysail.base.names import EventReason
from skysail.cloud.errors import Rejected
from skysail.cloud.provider import Provider, RunId
from skysail.cloud.simulated.ledger import Ledger, Row
from skysail.kube import certificates
from skysail.local import files
from skysail.local.cluster.home import Home
from skysail.local.errors import BuildFailed, Misused
from skysail.local.files import remove_tree
from skysail.local.provider.dependencies import ImageFinder, ProviderDependencies
from skysail.local.provider.provider import LocalProvider

# The kernel's limit for the path of a Unix socket, which a client gets as it is.
_MAX_SOCKET_PATH = 107
_CERTIFICATE_LIFETIME = timedelta(days=365)
_TOKEN_ID = "ak-stand-in"  # noqa: S105 (the public half)

log = logging.getLogger(__name__)


class StandIn(Protocol):
    """A stand-in that is not started yet."""

    async def start(self, listener: socket.socket) -> None:
        """Serve this listening Unix socket."""
        ...

    async def close(self) -> None: ...


class StandInContext(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of a stand-in. `tls` has a certificate for 127.0.0.1 and `localhost`."""

    home: Home
    provider: Provider
    images: ImageFinder
    disks: Path
    tls: ssl.SSLContext

    def open_ledger(self, cloud: str) -> Ledger:
        return Ledger.open(ledger_file(self.home, cloud), mark=secrets.token_hex(4))

    def report_port(self, cloud: str, port: int) -> None:
        """Tell `skysail dev` about a port that a client outside the local cluster has to reach."""
        with ports_file(self.home, cloud).open("a") as file:
            file.write(f"{port}\n")

    def make_disk(self, name: str) -> None:
        (self.disks / name).mkdir(mode=0o700, parents=True, exist_ok=True)

    def remove_disk(self, name: str) -> None:
        shutil.rmtree(self.disks / name)

    async def find_image(self, image: str, report: Callable[[str], None]) -> None:
        """Raise Rejected unless node `local` has this image. Builds its environment if necessary."""
        try:
            found = await self.images.find(image, report)
        except BuildFailed as error:
            raise Rejected("ErrImagePull", str(error)) from error
        if found is None:
            raise Rejected("ErrImagePull", f"Image {image} has no environment on this machine.")


class StandIns:
    """Listens for all stand-ins, and starts each one when it is used.

    `deps` are the node's: sandboxes share its network, images and limits, but none of its folders.
    """

    def __init__(self, home: Home, deps: ProviderDependencies) -> None:
        self._home = home
        self._images = deps.images
        folder = _folder(home)
        volume_paths = replace(
            deps.volume_paths,
            folder=folder / "volumes",
            memory=deps.volume_paths.memory / "stand-ins",
            disks=folder / "disks",
            # For containers of Functions: the SDK, and the sockets of their workers.
            allowed=(Path(sysconfig.get_paths()["purelib"]), folder / "workers"),
        )
        for stale in (volume_paths.folder, volume_paths.memory, folder / "pods", folder / "workers"):
            remove_tree(stale, ignore_errors=True)
        self._disks = volume_paths.disks
        self._provider = LocalProvider(
            replace(deps, volume_paths=volume_paths, runs=folder / "pods", record=_log_event, allows_host_network=False)
        )
        self._waiting: list[socket.socket] = []
        self._started: list[StandIn] = []
        self._starting: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        _folder(self._home).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._disks.mkdir(mode=0o700, exist_ok=True)
        for cloud, opener in _OPENERS.items():
            listener = unix_sockets.listen(socket_file(self._home, cloud))
            self._waiting.append(listener)
            asyncio.get_running_loop().add_reader(listener, partial(self._activate, listener, cloud, opener))

    async def close(self) -> None:
        for listener in self._waiting:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        if self._starting:
            await asyncio.wait(self._starting)
        for stand_in in self._started:
            await stand_in.close()
        await self._provider.close()

    def _activate(self, listener: socket.socket, cloud: str, opener: Opener) -> None:
        """Start a stand-in at its first connection, which waits in the listener's queue."""
        asyncio.get_running_loop().remove_reader(listener)
        self._waiting.remove(listener)
        task = asyncio.create_task(self._start(listener, cloud, opener))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _start(self, listener: socket.socket, cloud: str, opener: Opener) -> None:
        context = StandInContext(
            home=self._home,
            provider=self._provider,
            images=self._images,
            disks=self._disks,
            tls=_server_tls(self._home),
        )
        ports_file(self._home, cloud).unlink(missing_ok=True)
        stand_in = opener(context)
        await stand_in.start(listener)
        self._started.append(stand_in)
        log.info("stand-in started", extra={"cloud": cloud})


def socket_file(home: Home, cloud: str) -> Path:
    """Socket of a stand-in. Pods share the network of the cluster but not its folders."""
    return _folder(home) / f"{cloud}.sock"


def ledger_file(home: Home, cloud: str) -> Path:
    return _folder(home) / f"{cloud}.jsonl"


def faults_file(home: Home, cloud: str) -> Path:
    return _folder(home) / f"{cloud}-faults.json"


def read_ledger(home: Home, cloud: str) -> list[Row]:
    """Return the rows of a stand-in's ledger. An unfinished last line was never written."""
    try:
        whole, _, _ = ledger_file(home, cloud).read_bytes().rpartition(b"\n")
    except FileNotFoundError:
        return []
    return msgspec.json.Decoder(Row).decode_lines(whole)


def ports_file(home: Home, cloud: str) -> Path:
    return _folder(home) / f"{cloud}.ports"


def ports(home: Home, cloud: str) -> list[int]:
    """Return the ports that the stand-in has opened so far, on 127.0.0.1 in the local cluster."""
    try:
        return [int(line) for line in ports_file(home, cloud).read_text().splitlines()]
    except FileNotFoundError:
        return []


def ca_file(home: Home) -> Path:
    """Authority that signed the certificate of tunnels, written when a stand-in starts."""
    return _folder(home) / "ca.crt"


def token(home: Home, cloud: str) -> str:
    """Return the secret of the stand-in's account, and create it if needed."""
    _folder(home).mkdir(mode=0o700, parents=True, exist_ok=True)
    return files.token(_folder(home) / f"{cloud}.token")


def environment(home: Home, cloud: str) -> Mapping[str, str]:
    """Return variables that point an unmodified client of this cloud to its stand-in.

    Raises Misused if the socket's path is longer than a client can dial.
    """
    path = socket_file(home, cloud)
    if len(str(path).encode()) > _MAX_SOCKET_PATH:
        raise Misused(f"The path {path} is too long for a socket: choose a shorter SKYSAIL_HOME.")
    return _ENVIRONMENTS[cloud](home)


def _folder(home: Home) -> Path:
    return home.root / "stand-ins"


def _log_event(run: RunId, reason: EventReason, note: str) -> None:
    """Take the place of the node's event recorder: a sandbox has no pod of this cluster to record an event on."""
    log.info("stand-in event", extra={"pod": run.pod, "reason": reason, "note": note})


def _server_tls(home: Home) -> ssl.SSLContext:
    """Return a context with a new certificate, and leave its authority for clients."""
    now = datetime.now(UTC)
    authority = certificates.certificate_authority("skysail-stand-ins", now=now, valid=_CERTIFICATE_LIFETIME)
    pair = certificates.server(authority, ("127.0.0.1", "localhost"), now=now, valid=_CERTIFICATE_LIFETIME)
    ca_file(home).write_bytes(authority.certificate)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    path = _folder(home) / "tls.pem"
    path.touch(mode=0o600)
    path.write_bytes(pair.certificate + pair.key)
    context.load_cert_chain(path)
    return context


def _open_modal(context: StandInContext) -> StandIn:
    from skysail.cloud.modal.stand_in.images import RegistryLogin  # noqa: PLC0415 (the SDK is large)
    from skysail.cloud.modal.stand_in.server import ModalStandIn, StandInConfig  # noqa: PLC0415 (as above)
    from skysail.cloud.modal.stand_in.tokens import Credentials  # noqa: PLC0415 (as above)

    async def find_image(image: str, _: RegistryLogin | None, report: Callable[[str], None]) -> None:
        await context.find_image(image, report)

    config = StandInConfig(
        credentials=Credentials(_TOKEN_ID, token(context.home, "modal")),
        provider=context.provider,
        ledger=context.open_ledger("modal"),
        tls=context.tls,
        find_image=find_image,
        make_disk=context.make_disk,
        remove_disk=context.remove_disk,
        workers=_folder(context.home) / "workers",
        faults_file=faults_file(context.home, "modal"),
        report_port=partial(context.report_port, "modal"),
    )
    return ModalStandIn(config)


def _modal_environment(home: Home) -> Mapping[str, str]:
    return {
        # With a host name: the SDK accepts the router's own certificate only from a local server.
        "MODAL_SERVER_URL": f"unix://localhost{socket_file(home, 'modal')}",
        "MODAL_TOKEN_ID": _TOKEN_ID,
        "MODAL_TOKEN_SECRET": token(home, "modal"),
        "MODAL_CONFIG_PATH": "/nonexistent",
        "MODAL_DISABLE_API_PROXY": "1",
    }


def _open_runpod(context: StandInContext) -> StandIn:
    from skysail.cloud.runpod.stand_in.faults import FaultScript  # noqa: PLC0415 (as above)
    from skysail.cloud.runpod.stand_in.server import StandInServer  # noqa: PLC0415 (as above)
    from skysail.cloud.runpod.stand_in.service import StandInService  # noqa: PLC0415 (as above)

    service = StandInService(
        context.provider,
        context.open_ledger("runpod"),
        now=time.time,
        script=FaultScript(path=faults_file(context.home, "runpod")),
    )
    service.make_disk = context.make_disk
    return StandInServer(service, token(context.home, "runpod"))


def _runpod_environment(home: Home) -> Mapping[str, str]:
    return {
        "RUNPOD_API_BASE_URL": f"unix:{socket_file(home, 'runpod')}",
        "RUNPOD_API_KEY": token(home, "runpod"),
    }


Opener = Callable[[StandInContext], StandIn]
_OPENERS: dict[str, Opener] = {"modal": _open_modal, "runpod": _open_runpod}
_ENVIRONMENTS: dict[str, Callable[[Home], Mapping[str, str]]] = {
    "modal": _modal_environment,
    "runpod": _runpod_environment,
}
CLOUDS = tuple(_OPENERS)
