"""The stand-in for Modal in the test's own process, on a Unix socket, and the unmodified SDK as its client."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import ssl
import sysconfig
import tempfile
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import modal
import msgspec

from skysail.base import unix_sockets
from skysail.cloud.errors import Rejected
from skysail.cloud.modal.stand_in.sandboxes import SandboxOptions
from skysail.cloud.modal.stand_in.server import ModalStandIn, StandInConfig
from skysail.cloud.modal.stand_in.tokens import Credentials
from skysail.cloud.simulated import billing
from skysail.cloud.simulated.ledger import Ledger
from skysail.kube import certificates
from tests.conformance.local import Attachment, OwnNetwork, local_provider

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from skysail.cloud.modal.stand_in.faults import Fault, FaultScript
    from skysail.cloud.modal.stand_in.images import RegistryLogin
    from skysail.cloud.provider import Pod, Provider

CREDENTIALS = Credentials("ak-test", "as-test")
IMAGE = "busybox:1.36"
PYTHON_IMAGE = "python:3"
TORCH_IMAGE = "pytorch/pytorch:2.9.0-cuda12.8-cudnn9-runtime"
# The user and password that the registry of PRIVATE_IMAGE wants.
PRIVATE_IMAGE = "registry.example/private:1"
LOGIN = ("someone", "canary-password")


class LoopbackNetwork(OwnNetwork):
    """Every pod is on the machine's own network, at an address that no other pod of any test has."""

    def __init__(self) -> None:
        self._prefix = f"127.{1 + secrets.randbelow(254)}.{secrets.randbelow(256)}"
        self._addresses: dict[str, str] = {}

    async def attach(self, pod: Pod) -> Attachment:
        return Attachment("", self._addresses.setdefault(pod.uid, f"{self._prefix}.{len(self._addresses) % 250 + 2}"))


class StandInHarness(msgspec.Struct, frozen=True, kw_only=True):
    """A running stand-in. `env` points the SDK to it, and is set while the harness is open."""

    stand_in: ModalStandIn
    provider: Provider
    url: str
    env: Mapping[str, str]
    ca: Path

    @property
    def credentials(self) -> Credentials:
        return CREDENTIALS

    @property
    def ledger(self) -> Ledger:
        return self.stand_in.ledger

    @property
    def faults(self) -> FaultScript:
        return self.stand_in.faults

    def inject(self, *faults: Fault) -> None:
        self.faults.add(*faults)

    async def client(self) -> modal.Client:
        return await modal.Client.from_credentials.aio(CREDENTIALS.token_id, CREDENTIALS.token_secret)

    def check_ledger(self) -> None:
        """Nothing is billed any more, and no claim was billed twice at once."""
        assert billing.billable(self.ledger.rows) == ()
        assert billing.max_concurrent(self.ledger.rows) <= 1


@asynccontextmanager
async def stand_in(
    folder: Path, options: SandboxOptions | None = None, ledger: Ledger | None = None
) -> AsyncIterator[StandInHarness]:
    """Run a stand-in with the provider `local`. Fails if the SDK made a call that it does not know."""
    allowed = (Path(sysconfig.get_paths()["purelib"]), folder / "workers")
    async with local_provider(folder, network=LoopbackNetwork(), allowed=allowed) as provider:
        context, ca = _tls(folder)
        config = StandInConfig(
            credentials=CREDENTIALS,
            provider=provider,
            ledger=ledger or Ledger(),
            tls=context,
            find_image=_find_image,
            make_disk=_disk_maker(folder / "disks"),
            remove_disk=lambda name: shutil.rmtree(folder / "disks" / name),
            workers=folder / "workers",
            options=options or SandboxOptions(),
        )
        server = ModalStandIn(config)
        # A Unix socket has a short path, and a test's own folder may have a long one.
        with tempfile.TemporaryDirectory(prefix="skysail-") as sockets:
            path = Path(sockets) / "modal.sock"
            await server.start(unix_sockets.listen(path))
            env = environment(path)
            harness = StandInHarness(stand_in=server, provider=provider, url=env["MODAL_SERVER_URL"], env=env, ca=ca)
            with mock.patch.dict(os.environ, env):
                try:
                    yield harness
                finally:
                    await server.close()
    assert server.unknown_calls == []


def environment(path: Path) -> dict[str, str]:
    """Variables that point an unmodified SDK to the stand-in."""
    return {
        # With a host name, because the SDK accepts the router's own certificate only from a local server.
        "MODAL_SERVER_URL": f"unix://localhost{path}",
        "MODAL_TOKEN_ID": CREDENTIALS.token_id,
        "MODAL_TOKEN_SECRET": CREDENTIALS.token_secret,
        "MODAL_CONFIG_PATH": "/nonexistent",
        "MODAL_DISABLE_API_PROXY": "1",
        "MODAL_MAX_THROTTLE_WAIT": "60",
        "MODAL_LOGLEVEL": "ERROR",
    }


async def shell(
    cloud: StandInHarness,
    script: str,
    *,
    argv: tuple[str, ...] | None = None,
    app: modal.App | None = None,
    app_name: str = "jobs",
    **wishes: Any,
) -> modal.Sandbox:
    """A new sandbox that runs this script. Its deadline is long, because the machine may be busy."""
    client = await cloud.client()
    app = app or await modal.App.lookup.aio(app_name, create_if_missing=True, client=client)
    wishes = {"timeout": 3600, "image": modal.Image.from_registry(IMAGE).entrypoint([]), **wishes}
    command = ("sh", "-c", script) if argv is None else argv
    return await modal.Sandbox.create.aio(*command, app=app, client=client, **wishes)


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait for something that another task does soon."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 (there is no event for it)
            await asyncio.sleep(0.01)


async def _find_image(image: str, login: RegistryLogin | None, report: Callable[[str], None]) -> None:
    report(f"pulling {image}")
    if image == PRIVATE_IMAGE:
        if login is None or (login.username, login.password) != LOGIN:
            raise Rejected("ErrImagePull", f"{image}: access denied")
    elif image not in {IMAGE, PYTHON_IMAGE, TORCH_IMAGE}:
        raise Rejected("ErrImagePull", f"{image}: manifest unknown")


def _disk_maker(folder: Path) -> Callable[[str], None]:
    def make(name: str) -> None:
        (folder / name).mkdir(parents=True, exist_ok=True)

    return make


def _tls(folder: Path) -> tuple[ssl.SSLContext, Path]:
    now, valid = datetime.now(UTC), timedelta(days=1)
    authority = certificates.certificate_authority("stand-in", now=now, valid=valid)
    pair = certificates.server(authority, ["127.0.0.1", "localhost"], now=now, valid=valid)
    for name, content in {"ca.crt": authority.certificate, "tls.crt": pair.certificate, "tls.key": pair.key}.items():
        (folder / name).write_bytes(content)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return context, folder / "ca.crt"
