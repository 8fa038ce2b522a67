"""The node agent's process: the node of this machine. Runs inside the local cluster's namespaces.

The agent authenticates as its node, so it has access only to its own pods and the objects they name. Pods are child
processes: they end with the agent, and the next agent reports them as lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import random
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from skysail.app.simulated_clouds import SimulatedClouds
from skysail.app.stand_ins import StandIns
from skysail.base import clock, health_server, log_setup
from skysail.base.inherited_listeners import InheritedListeners
from skysail.base.metrics import Metrics
from skysail.base.names import EventReason
from skysail.cloud.provider import RunId
from skysail.kube.certificates import KeyPair
from skysail.kube.client import kubeconfig
from skysail.kube.client.client import Client
from skysail.kube.client.errors import KubeError
from skysail.kube.client.http_transport import HttpTransport
from skysail.kube.events import Broadcaster
from skysail.local.addresses import CLUSTER_IP, METRICS_PORT, MOUNT_FOLDER, NODE, NODE_PORT, RUN_FOLDER
from skysail.local.bubblewrap import sandbox_check
from skysail.local.bubblewrap.cgroups import Bounds, CgroupManager
from skysail.local.bubblewrap.host_tools import HostTools
from skysail.local.bubblewrap.isolation import MAX_PROCESSES, Isolation
from skysail.local.cluster.home import Home
from skysail.local.control_plane import credentials, pki
from skysail.local.files import remove_tree
from skysail.local.images.environments import open_environments
from skysail.local.network import egress_proxy, host_network
from skysail.local.network.network import Network
from skysail.local.network.pod_network import InstanceNetwork
from skysail.local.network.policy import policy_enforcer
from skysail.local.provider import pod_limits
from skysail.local.provider.dependencies import ProviderDependencies
from skysail.local.provider.disk_monitor import DiskMonitor
from skysail.local.provider.provider import LocalProvider
from skysail.local.provider.run_journal import RunJournal
from skysail.local.storage.provisioner import VolumeProvisioner
from skysail.local.storage.volumes import VolumePaths
from skysail.node import kubelet
from skysail.node.config.references import NodeInfo
from skysail.node.kubelet import Kubelet
from skysail.node.log_store import LogStore
from skysail.node.metrics_api import MetricsApi
from skysail.node.registration.registrar import NodeDescription, NodeRegistrar
from skysail.node.server import routes
from skysail.node.server.authentication import Authenticator
from skysail.node.server.authorization import Authorizer
from skysail.node.server.tls import ServingCertificate
from skysail.node.server_backend import KubeletBackend
from skysail.node.usage_sampler import UsageSampler

# More than most machines have, on purpose: a local cluster should try to run a pod instead of keeping it pending.
CAPACITY = {"cpu": "64", "memory": "256Gi", "pods": "250", "ephemeral-storage": "1Ti"}
_RETRY_SECONDS = 0.5
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

log = logging.getLogger(__name__)


def main(home: str) -> int:
    log_setup.configure("info", "json")
    # Files that pods mount must be readable for every user of a pod. Other users of the machine cannot enter the home.
    os.umask(0o022)
    return asyncio.run(run(Home(Path(home))))


async def run(home: Home) -> int:
    """Run the node agent until SIGTERM or SIGINT."""
    async with (
        _client(home, "node") as client,
        _client(home, "proxy") as watcher,
        _client(home, "disks") as provisioner,
    ):
        rng = random.Random()  # noqa: S311 (jitter, no secret)
        disks = VolumeProvisioner(provisioner, home.root / "disks", rng)
        network = Network(watcher, rng, load_policies=policy_enforcer.loader(os.environ.get("PATH", "")))
        await NodeAgent(home, client, network, disks, rng=rng).run()
    return 0


class _StopRequested(Exception):
    """Raised to end the task group; not an error."""


class _Version(msgspec.Struct, rename="camel"):
    git_version: str


class NodeAgent:
    """Builds and connects all parts of the process."""

    def __init__(
        self, home: Home, client: Client, network: Network, disks: VolumeProvisioner, *, rng: random.Random
    ) -> None:
        self._listeners = InheritedListeners.from_environment(os.environ)
        self._home = home
        self._client = client
        self._network = network
        self._disks = disks
        self._rng = rng
        self._store = LogStore(home.root / "pod-logs")
        self._disk = DiskMonitor(home.root)
        self._broadcaster = Broadcaster(client, instance=NODE, now=clock.now)
        self._provider_deps = self._provider_dependencies()
        self._provider = LocalProvider(self._provider_deps)
        instance_deps = msgspec.structs.replace(self._provider_deps, network=InstanceNetwork(network.pods))
        self._simulated = SimulatedClouds(home, instance_deps)
        self._stand_ins = StandIns(home, instance_deps)
        self._serving_certificate = ServingCertificate(client, self._certificate, rng)
        self._usage_sampler = UsageSampler(self._provider, time.time)
        node_info = NodeInfo(
            name=NODE, address=CLUSTER_IP, allocatable=CAPACITY, environment=egress_proxy.environment()
        )
        deps = kubelet.KubeletDependencies(self._broadcaster, time.time, clock.boottime, rng)
        self._kubelet = Kubelet(client, self._provider, node_info, self._store, deps=deps)

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT. The network starts before the first pod and stops after the last."""
        async with asyncio.TaskGroup() as tasks:
            network = tasks.create_task(self._network.run())
            try:
                await self._serve()
            finally:
                await self._provider.close()
                network.cancel()

    async def _serve(self) -> None:
        await sandbox_check.verify(self._provider_deps.isolation, self._provider_deps.tools)
        listener = self._listeners.take_or_open(NODE_PORT, CLUSTER_IP)
        server = await routes.serve(self._api(), listener, self._serving_certificate.callers.context)
        metrics = MetricsApi(NODE, self._kubelet, self._usage_sampler)
        front = self._serving_certificate.front_proxy.context
        metrics_server = await health_server.serve(
            metrics.application(),
            METRICS_PORT,
            listener=self._listeners.take_or_open(METRICS_PORT, CLUSTER_IP),
            ssl_context=front,
        )
        registrar = NodeRegistrar(
            self._client,
            await self._description(),
            now=clock.now,
            rng=self._rng,
            has_disk_pressure=lambda: self._disk.has_pressure,
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._until_signal())
                tasks.create_task(self._broadcaster.run())
                tasks.create_task(self._disks.run())
                tasks.create_task(self._disk.run())
                tasks.create_task(self._serving_certificate.run())
                await self._network.ready.wait()
                await self._serving_certificate.ready.wait()
                await self._stand_ins.open()
                await self._simulated.open()  # last: its socket tells that the agent is up
                tasks.create_task(self._kubelet.run())
                tasks.create_task(self._usage_sampler.run())
                tasks.create_task(registrar.run())
        except* _StopRequested:
            log.info("stopping")
        finally:
            await server.cleanup()
            await metrics_server.cleanup()
            await self._simulated.close()
            await self._stand_ins.close()

    async def _until_signal(self) -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await stop.wait()
        raise _StopRequested

    def _provider_dependencies(self) -> ProviderDependencies:
        home, inside = self._home.root, Path(RUN_FOLDER)
        volumes, runs, memory = home / "volumes", home / "pods", Path("/dev/shm/skysail")  # noqa: S108 (in our mount namespace)
        for folder in (volumes, runs, memory):  # left by pods that ended with the previous agent
            remove_tree(folder, ignore_errors=True)
        # Closed to other users of the machine: root in a pod can leave a setuid file of the machine's root on a PVC.
        for folder in (volumes, runs, home / "disks"):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o700)
        allowed = os.environ.get("SKYSAIL_ALLOWED_FOLDERS", "")
        # Inside the local cluster, package indexes are reached through the egress proxy only.
        _, environments = open_environments(home, {**os.environ, **egress_proxy.proxy_env()})
        tools, seed = HostTools.find(os.environ.get("PATH", "")), self._home.root.stat().st_ino
        cgroups = CgroupManager.mount(inside / "cgroup", f"skysail-{seed}", max_processes=MAX_PROCESSES)
        cgroups.bound_all(Bounds.of_this_machine())
        return ProviderDependencies(
            tools=tools,
            groups=cgroups,
            isolation=Isolation.detect(tools, Path(MOUNT_FOLDER), home / "disks", seed=seed),
            network=self._network.pods,
            images=environments,
            volume_paths=VolumePaths(
                folder=volumes,
                memory=memory,
                disks=home / "disks",
                allowed=tuple(Path(folder) for folder in allowed.split(os.pathsep) if folder),
            ),
            runs=runs,
            journal=RunJournal(home / "journal"),
            name_server=CLUSTER_IP,
            now=time.time,
            record=self._record_run_event,
            show_progress=self._show_progress,
            logs=home / "pod-logs",
            disk=self._disk,
            allows_host_network=host_network.is_allowed(os.environ),
        )

    def _record_run_event(self, run: RunId, reason: EventReason, note: str) -> None:
        self._kubelet.record_run_event(run, reason, note)

    def _show_progress(self, run: RunId, step: str) -> None:
        self._kubelet.show_progress(run, step)

    def _api(self) -> routes.KubeletApi:
        kubelet_backend = KubeletBackend(self._kubelet, self._provider, self._store, self._usage_sampler)
        gate = routes.AccessGate(
            Authenticator(self._client, time.monotonic), Authorizer(self._client, NODE, time.monotonic)
        )
        return routes.KubeletApi(NODE, kubelet_backend, gate, metrics=Metrics().render, clock=time.time)

    def _certificate(self) -> KeyPair:
        """Read the node's certificate from disk. Raises ValueError while its files are being replaced."""
        key_pair = pki.read(self._home.pki, "node")
        if key_pair is None:
            raise ValueError("The node's certificate does not match its key.")
        return key_pair

    async def _description(self) -> NodeDescription:
        version = await self._version()
        return NodeDescription(
            name=NODE,
            address=CLUSTER_IP,
            port=NODE_PORT,
            provider_id=f"skysail://local/{NODE}",
            kubelet_version=version.git_version,
            capacity=CAPACITY,
            os_image=_os_image(),
            kernel_version=platform.release(),
            labels={"kubernetes.io/arch": _ARCHITECTURES.get(platform.machine(), platform.machine())},
            conditions=pod_limits.condition(
                pod_limits.unenforced(self._provider_deps.groups, self._provider_deps.isolation)
            ),
        )

    async def _version(self) -> _Version:
        """Return the API server's version. Waits until it answers: an agent that exits would only be restarted."""
        while True:
            try:
                return await self._client.read("/version", _Version)
            except KubeError as error:
                log.info("API server does not answer yet, retrying", extra={"why": str(error)})
                await asyncio.sleep(_RETRY_SECONDS)


def _os_image() -> str:
    """Return the name of the machine's system, such as Debian GNU/Linux 12."""
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        return "Linux"


@asynccontextmanager
async def _client(home: Home, name: str) -> AsyncIterator[Client]:
    transport = HttpTransport(kubeconfig.from_file(credentials.inside_path(home, name)))
    try:
        yield Client(transport)
    finally:
        await transport.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
