"""Virtual nodes in the operator's process, each of which stands for a cloud."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import msgspec

from skysail.app.accounts import kind_of
from skysail.base import clock
from skysail.base.inherited_listeners import InheritedListeners
from skysail.base.metrics import Metrics
from skysail.base.settings import NodeSettings, Settings
from skysail.claims.gangs import GangRef
from skysail.claims.manager import ClaimManager
from skysail.claims.requirements.cloud_requirements import CloudRequirements
from skysail.claims.requirements.cost_cap import CostCap
from skysail.cloud.images import ImageReader
from skysail.kube import certificates
from skysail.kube.certificates import KeyPair
from skysail.kube.client.client import Client
from skysail.kube.events import Broadcaster
from skysail.node import kubelet
from skysail.node.config.references import NodeInfo
from skysail.node.kubelet import Kubelet
from skysail.node.log_store import LogStore
from skysail.node.pod_types import Pod
from skysail.node.registration.node_lease import NodeLease
from skysail.node.registration.registrar import CloudHealth, NodeDescription, NodeRegistrar
from skysail.node.server import routes
from skysail.node.server.authentication import Authenticator
from skysail.node.server.authorization import Authorizer
from skysail.node.server.tls import ServingCertificate
from skysail.node.server_backend import KubeletBackend
from skysail.node.usage_sampler import UsageSampler

_CERTIFICATE_DAYS = 365


class NodeDependencies(msgspec.Struct, frozen=True, kw_only=True):
    """Dependencies that all nodes of a process share."""

    client: Client
    # Fenced: writes only while this process leads.
    fenced_client: Client
    broadcaster: Broadcaster
    identity: ServingCertificate
    # Contains one folder per node.
    logs: Path
    listeners: InheritedListeners
    rng: random.Random
    images: ImageReader
    address: str
    cluster: str
    version: str
    # GPU type of pods that name none, by provider.
    default_gpu_types: Mapping[str, str]


class PodOwners(Protocol):
    """Facts about a pod that depend on its owners. Both raise `OutcomeUnknown` if the owners cannot be read."""

    async def find_gang(self, pod: Pod) -> GangRef | None:
        """Return the gang of the pod, or None if it has none."""
        ...

    async def find_cost_cap(self, pod: Pod) -> CostCap:
        """Return the cap on the cost of the pod that its owners set."""
        ...


class CloudNode:
    """One virtual node. The leader serves it; other replicas renew its Lease while the node has no server."""

    def __init__(
        self,
        name: str,
        settings: NodeSettings,
        manager: ClaimManager,
        deps: NodeDependencies,
        owners: PodOwners,
    ) -> None:
        self.name = name
        provider = manager.provider(settings.provider)
        self._logs = LogStore(deps.logs / name)
        self.kubelet = Kubelet(
            deps.fenced_client,
            provider,
            NodeInfo(name=name, address=deps.address, allocatable=settings.capacity, is_virtual=True),
            self._logs,
            deps=kubelet.KubeletDependencies(deps.broadcaster, time.time, clock.boottime, deps.rng),
        )
        self._default_gpu_type = deps.default_gpu_types.get(settings.provider, "")
        provider.requirements = self._requirements
        provider.gang = self._gang
        provider.cost_cap = self._cost_cap
        self._owners = owners
        provider.read_image = deps.images.read
        provider.has_shell = deps.images.has_shell
        provider.has_mirror = deps.images.has_mirror
        provider.record = self.kubelet.record_run_event
        self._settings = settings
        self._provider = provider
        self._inventory = manager.listings[settings.provider]
        self._collector = manager.orphan_collectors[settings.provider]
        self._deps = deps

    def _requirements(self, uid: str) -> CloudRequirements:
        return with_default_gpu(self.kubelet.requirements(uid), self._default_gpu_type)

    async def serve(self) -> None:
        """Serve the node until cancelled."""
        deps = self._deps
        usage_sampler = UsageSampler(self._provider, time.time)
        kubelet_backend = KubeletBackend(self.kubelet, self._provider, self._logs, usage_sampler)
        gate = routes.AccessGate(
            Authenticator(deps.client, time.monotonic), Authorizer(deps.client, self.name, time.monotonic)
        )
        pages = routes.KubeletApi(self.name, kubelet_backend, gate, metrics=Metrics().render, clock=time.time)
        port = self._settings.port
        listener = deps.listeners.take(port) or socket.create_server((deps.address, port))
        await deps.identity.ready.wait()
        server = await routes.serve(pages, listener, deps.identity.callers.context)
        registrar = NodeRegistrar(
            deps.fenced_client, self._description(), now=clock.now, rng=deps.rng, cloud=self._cloud_health
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.kubelet.run())
                tasks.create_task(usage_sampler.run())
                tasks.create_task(registrar.run())
        finally:
            await server.cleanup()

    async def _gang(self, uid: str) -> GangRef | None:
        pod = self.kubelet.cached_pod(uid)
        return None if pod is None else await self._owners.find_gang(pod)

    async def _cost_cap(self, uid: str) -> CostCap:
        pod = self.kubelet.cached_pod(uid)
        return CostCap() if pod is None else await self._owners.find_cost_cap(pod)

    async def stand_by(self) -> None:
        """Renew the node's Lease until cancelled, if no process serves the node."""
        await NodeLease(self._deps.client, self.name, clock.now).stand_by()

    def _cloud_health(self) -> CloudHealth | None:
        if not self._inventory.is_polled:
            return None
        return CloudHealth(self._inventory.outage, self._collector.orphan_message)

    def _description(self) -> NodeDescription:
        key, _, effect = self._settings.taint.rpartition(":")
        name, _, value = key.partition("=")
        return NodeDescription(
            name=self.name,
            address=self._deps.address,
            port=self._settings.port,
            provider_id=f"skysail://{self._deps.cluster}/{self.name}",
            kubelet_version=self._deps.version,
            capacity=self._settings.capacity,
            labels=self._settings.labels,
            taints=({"key": name, "value": value, "effect": effect},),
            is_virtual=True,
            runtime=f"{self._settings.provider}://{kind_of(self._inventory.cloud)}",
        )


def with_default_gpu(requirements: CloudRequirements, gpu_type: str) -> CloudRequirements:
    """Return the requirements with this GPU type, if the pod asks for GPUs, names no type and not the cheapest one."""
    gpus = requirements.gpus
    if gpus is None or gpus.type or requirements.is_cheapest or not gpu_type:
        return requirements
    return msgspec.structs.replace(requirements, gpus=msgspec.structs.replace(gpus, type=gpu_type))


def certificate(settings: Settings, address: str) -> Callable[[], KeyPair]:
    """Return a function that reads the certificate of the nodes' servers.

    It reads the files of the settings at each call, so that a renewed certificate is used. Without such settings, it
    returns a certificate that we signed at the start.
    """
    if settings.node_certificate and settings.node_key:
        files = Path(settings.node_certificate), Path(settings.node_key)
        return lambda: KeyPair(files[0].read_bytes(), files[1].read_bytes())
    now, valid = clock.now(), timedelta(days=_CERTIFICATE_DAYS)
    own = certificates.server(
        certificates.certificate_authority("skysail-nodes", now=now, valid=valid), [address], now=now, valid=valid
    )
    return lambda: own
