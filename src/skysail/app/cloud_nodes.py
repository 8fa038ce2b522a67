"""The clouds of the operator's process: accounts, the claims on them, and the nodes that stand for them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path

import msgspec

from skysail.app.simulated_clouds import open_account
from skysail.base import clock
from skysail.base.errors import UserError
from skysail.base.inherited_listeners import InheritedListeners
from skysail.base.metrics import Metrics
from skysail.base.names import ACCOUNT_REAL, ACCOUNT_SIMULATED
from skysail.base.settings import NodeSettings, Settings
from skysail.claims.manager import ClaimManager
from skysail.cloud.account import CloudAccount
from skysail.cloud.simulated.account import SimulatedAccount
from skysail.cloud.simulated.http.client import RemoteAccount
from skysail.cloud.simulated.unavailable import UnavailableAccount
from skysail.cloud.simulated.vendors import VENDORS
from skysail.kube import certificates
from skysail.kube.certificates import KeyPair
from skysail.kube.client.client import Client
from skysail.kube.events import Broadcaster
from skysail.node import kubelet
from skysail.node.config.references import NodeInfo
from skysail.node.kubelet import Kubelet
from skysail.node.log_store import LogStore
from skysail.node.registration.node_lease import NodeLease
from skysail.node.registration.registrar import CloudHealth, NodeDescription, NodeRegistrar
from skysail.node.server import routes
from skysail.node.server.authentication import Authenticator
from skysail.node.server.authorization import Authorizer
from skysail.node.server.tls import ServingCertificate
from skysail.node.server_backend import KubeletBackend
from skysail.node.usage_sampler import UsageSampler

_CERTIFICATE_DAYS = 365


class AccountError(UserError):
    """A setting about clouds cannot be used; the message names it."""


@contextlib.asynccontextmanager
async def accounts(settings: Settings) -> AsyncIterator[dict[str, CloudAccount]]:
    """The clouds that this process may call, by name."""
    opened: dict[str, RemoteAccount | SimulatedAccount | UnavailableAccount] = {}
    desired = [
        vendor for name, vendor in VENDORS.items() if name in {node.provider for node in settings.nodes.values()}
    ]
    if settings.simulated_cloud_url:
        token = _read(settings.simulated_cloud_token_file, "simulated_cloud_token_file")
        socket_path = _socket(settings.simulated_cloud_url)
        opened = {vendor.name: RemoteAccount(vendor, socket_path, token) for vendor in desired}
    elif settings.mock_clouds:
        opened = {vendor.name: open_account(vendor, Path(settings.data_dir)) for vendor in desired}
    try:
        yield dict(opened)
    finally:
        for account in opened.values():
            await account.close()


class SharedParts(msgspec.Struct, frozen=True, kw_only=True):
    """What the nodes of a process share."""

    client: Client
    # Writes while this process leads.
    acting: Client
    broadcaster: Broadcaster
    identity: ServingCertificate
    # Has a folder for each node.
    logs: Path
    listeners: InheritedListeners
    rng: random.Random
    address: str
    cluster: str
    version: str
    is_simulated: bool


class CloudNode:
    """One node. The replica that leads serves it; the others keep its Lease meanwhile."""

    def __init__(self, name: str, settings: NodeSettings, manager: ClaimManager, parts: SharedParts) -> None:
        self.name = name
        provider = manager.provider(settings.provider)
        self._logs = LogStore(parts.logs / name)
        self.keeper = Kubelet(
            parts.acting,
            provider,
            NodeInfo(name=name, address=parts.address, allocatable=settings.capacity, is_virtual=True),
            self._logs,
            deps=kubelet.KubeletDependencies(parts.broadcaster, time.time, clock.boottime, parts.rng),
        )
        provider.requirements = self.keeper.requirements
        self._settings = settings
        self._provider = provider
        self._inventory = manager.listings[settings.provider]
        self._collector = manager.sweepers[settings.provider]
        self._parts = parts

    async def serve(self) -> None:
        """Until cancelled."""
        parts = self._parts
        usage_sampler = UsageSampler(self._provider, time.time)
        kubelet_backend = KubeletBackend(self.keeper, self._provider, self._logs, usage_sampler)
        gate = routes.AccessGate(
            Authenticator(parts.client, time.monotonic), Authorizer(parts.client, self.name, time.monotonic)
        )
        pages = routes.KubeletApi(self.name, kubelet_backend, gate, metrics=Metrics().render, clock=time.time)
        port = self._settings.port
        listener = parts.listeners.take(port) or socket.create_server((parts.address, port))
        await parts.identity.ready.wait()
        server = await routes.serve(pages, listener, parts.identity.callers.context)
        registrar = NodeRegistrar(parts.acting, self._description(), now=clock.now, rng=parts.rng, cloud=self._state)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.keeper.run())
                tasks.create_task(usage_sampler.run())
                tasks.create_task(registrar.run())
        finally:
            await server.cleanup()

    async def stand_by(self) -> None:
        """Until cancelled."""
        await NodeLease(self._parts.client, self.name, clock.now).stand_by()

    def _state(self) -> CloudHealth | None:
        if not self._inventory.is_polled:
            return None
        return CloudHealth(self._inventory.outage, self._collector.orphan_message)

    def _description(self) -> NodeDescription:
        key, _, effect = self._settings.taint.rpartition(":")
        name, _, value = key.partition("=")
        return NodeDescription(
            name=self.name,
            address=self._parts.address,
            port=self._settings.port,
            provider_id=f"skysail://{self._parts.cluster}/{self.name}",
            kubelet_version=self._parts.version,
            capacity=self._settings.capacity,
            labels=self._settings.labels,
            taints=({"key": name, "value": value, "effect": effect},),
            is_virtual=True,
            runtime=f"{self._settings.provider}://{ACCOUNT_SIMULATED if self._parts.is_simulated else ACCOUNT_REAL}",
        )


def certificate(settings: Settings, address: str) -> Callable[[], KeyPair]:
    """What the nodes' servers show: the files of the settings, read anew each time, or one of our own."""
    if settings.node_certificate and settings.node_key:
        files = Path(settings.node_certificate), Path(settings.node_key)
        return lambda: KeyPair(files[0].read_bytes(), files[1].read_bytes())
    now, valid = clock.now(), timedelta(days=_CERTIFICATE_DAYS)
    own = certificates.server(
        certificates.certificate_authority("skysail-nodes", now=now, valid=valid), [address], now=now, valid=valid
    )
    return lambda: own


def _socket(name: str) -> Path:
    path = Path(name)
    if not path.is_absolute() or not path.parent.is_dir():
        raise AccountError(
            f"simulated_clouds is {name!r}, which is no path of a Unix socket in a folder that exists: name the socket "
            "of the simulated clouds, such as $SKYSAIL_HOME/clouds.sock."
        )
    return path


def _read(path: str | None, name: str) -> str:
    if not path:
        raise AccountError(f"The setting {name} is missing: it names the file with the token for simulated clouds.")
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise AccountError(f"{name} names {path}, which cannot be read: {error.strerror}.") from error
