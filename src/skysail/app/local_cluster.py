"""The local cluster's process: control plane, operator and node on this machine, inside one set of namespaces.

Two parts. The outer part stays in the machine's network and forwards connections into the cluster; when it dies, the
kernel kills the rest. The inner part supervises the units and answers on the control socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec

from skysail.app import simulated_clouds, stand_ins
from skysail.app.install import install, install_node
from skysail.base import open_files
from skysail.base.settings import Settings
from skysail.base.unix_sockets import reachable
from skysail.kube.api import resources
from skysail.kube.client import kubeconfig
from skysail.kube.client.client import Client
from skysail.kube.client.errors import KubeError
from skysail.kube.client.http_transport import HttpTransport
from skysail.local import files
from skysail.local.addresses import (
    API_PORT,
    CLUSTER_IP,
    METRICS_PORT,
    MODEL_SOURCES,
    NODE,
    NODE_PORT,
    OPERATOR_HEALTH_PORT,
)
from skysail.local.cluster import control_client, namespaces, syscalls, tcp_proxy
from skysail.local.cluster.control_client import Answer, Control, LocalClusterStatus, Request
from skysail.local.cluster.control_server import ControlServer
from skysail.local.cluster.home import Home
from skysail.local.cluster.supervisor import Supervisor, SupervisorDependencies, Unit
from skysail.local.control_plane import credentials, pki, startup
from skysail.local.control_plane.flags import Component
from skysail.local.errors import LocalError, StartFailed
from skysail.local.images import package_index
from skysail.local.launcher import ANOTHER_RUNS, LocalClusterSettings
from skysail.local.network import egress_proxy, host_network, host_side
from skysail.local.network.egress_policy import EgressPolicy, parse_networks
from skysail.local.network.policy import policy_enforcer
from skysail.local.reports import cloud_costs
from skysail.node.registration import registrar

_DIAL_SECONDS = 5.0
_POLL_SECONDS = 1.0
_RETRY_SECONDS = 0.1
_CLOUD_SECONDS = 15.0
_SETTINGS = Settings()
OPERATOR_PORTS = (
    *_SETTINGS.health_ports,
    _SETTINGS.webhook_port,
    _SETTINGS.progress_port,
    *(node.port for node in _SETTINGS.nodes.values()),
)
AGENT_PORTS = (NODE_PORT, METRICS_PORT)
_OPERATOR_READY = f"http://{CLUSTER_IP}:{OPERATOR_HEALTH_PORT}/readyz"


def main(argument: str) -> int:
    """Run until stopped. Returns the exit code; on failure, the reason is in the home folder for `skysail up`."""
    open_files.raise_limit()
    syscalls.leave_session_keyring()
    settings = msgspec.json.decode(argument, type=LocalClusterSettings)
    if settings.tied:
        syscalls.die_with_parent()
    home = Home(Path(settings.home))
    home.prepare()
    os.chdir(home.root)
    lock = home.lock()
    if lock is None:
        return ANOTHER_RUNS  # one local cluster per home
    _prepare_files(home, settings)
    listener = tcp_proxy.open_listener(_last_port(home))
    home.api_port_file.write_text(str(listener.getsockname()[1]))
    inside = _InnerProcess(settings, home, f"https://127.0.0.1:{listener.getsockname()[1]}")
    try:
        policy = _egress_policy(os.environ) if settings.with_node else None
        host_network.is_allowed(os.environ)
        entry = namespaces.fork_isolated(lambda: asyncio.run(inside.run()))
    except LocalError as error:
        home.failure.write_text(str(error))
        return error.exit_code
    return asyncio.run(_run_outer_process(entry, listener, home, lock, policy))


def _egress_policy(env: Mapping[str, str]) -> EgressPolicy:
    """Return the egress policy of pods. It allows networks that the user named, and the package index of images."""
    allowed = parse_networks(env.get("SKYSAIL_ALLOWED_NETWORKS", ""))
    return EgressPolicy(exceptions=allowed, servers=package_index.servers(env))


def _prepare_files(home: Home, settings: LocalClusterSettings) -> None:
    """Replace the files of the previous local cluster. We hold the home's lock, so no other process writes them."""
    home.failure.unlink(missing_ok=True)
    if home.cluster_log.exists():
        home.cluster_log.replace(home.cluster_log.with_suffix(".log.1"))
    log = os.open(home.cluster_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    os.close(log)
    home.pid.write_text(f"{os.getpid()}\n")
    home.kubectl.write_bytes(msgspec.json.encode(settings.binaries.commands[Component.KUBECTL]))


async def _run_outer_process(
    entry: int, listener: socket.socket, home: Home, lock: int, policy: EgressPolicy | None
) -> int:
    """Forward connections into the cluster and, under the egress policy, out of pods, until the inner part exits.

    Forwards SIGTERM and SIGINT to the inner part. Returns its exit code.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, os.kill, entry, number)

    async def dial() -> socket.socket:
        return await asyncio.to_thread(Control(home.control).dial, CLUSTER_IP, API_PORT)

    server = await tcp_proxy.serve(listener, dial)
    tasks = [asyncio.create_task(_stop_without_home(entry, home, lock))]
    if policy is not None:
        egress = host_side.serve(Control(home.control), host_side.machines_name_servers(), policy)
        tasks.append(asyncio.create_task(egress))
    _, status = await asyncio.to_thread(os.waitpid, entry, 0)
    server.close()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return os.waitstatus_to_exitcode(status)


async def _stop_without_home(entry: int, home: Home, lock: int) -> None:
    """Stop the cluster when its home folder is deleted, because `skysail down` could not find it any more."""
    while home.is_held(lock):  # noqa: ASYNC110 (there is no event for the deletion of the folder)
        await asyncio.sleep(_POLL_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.kill(entry, signal.SIGTERM)


class _StopRequested(Exception):
    """Raised to end the task group when the cluster is asked to stop; not an error."""


class _InnerProcess:
    """The inner part, which runs in the namespaces."""

    def __init__(self, settings: LocalClusterSettings, home: Home, url: str) -> None:
        self._settings = settings
        self._home = home
        self._url = url
        self._outer_pid = os.getpid()
        self._started = time.time()
        self._steps: list[str] = []
        self._is_ready = False
        self._supervisor = Supervisor(
            home.logs, SupervisorDependencies(now=time.time, sleep=asyncio.sleep, report=_log)
        )

    async def run(self) -> int:
        self._stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)
        code = 0
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(ControlServer(self._home.control, self._handle).serve())
                tasks.create_task(self._until_stopped())
                tasks.create_task(self._start())
        except* _StopRequested:
            _log("stopping")
        except* (LocalError, KubeError, OSError) as failures:
            code = 1
            reasons = [str(failure) or type(failure).__name__ for failure in _flatten(failures)]
            self._home.failure.write_text("\n".join(reasons))
        finally:
            self._home.control.unlink(missing_ok=True)
            await self._supervisor.stop_all()
        return code

    async def _until_stopped(self) -> None:
        await self._stop.wait()
        raise _StopRequested

    async def _start(self) -> None:
        home, now = self._home, datetime.now(UTC)
        self._hold_ports()
        credentials.write_all(home, pki.ensure(home.pki, now), self._url, now)
        planned = startup.units(home, self._settings.binaries, self._settings.plane)
        await startup.start(self._supervisor, home, planned, self._report_step)
        async with asyncio.TaskGroup() as rest:
            rest.create_task(startup.until_ready(self._supervisor, home, planned))
            rest.create_task(self._install())
        self._is_ready = True

    def _hold_ports(self) -> None:
        """Bind all ports before the first pod starts: a pod with `hostNetwork` could take the operator's ports."""
        if self._settings.with_node:
            self._supervisor.hold(AGENT_PORTS)
        if self._settings.with_operator:
            self._supervisor.hold(OPERATOR_PORTS)

    async def _install(self) -> None:
        if self._settings.with_kinds:
            await self._install_kinds()
        if self._settings.with_node:
            await self._start_agent()  # first, because it serves the simulated clouds that the operator calls
        if self._settings.with_operator:
            await self._start_operator()
        if self._settings.with_node:
            await self._await_node()
        if self._settings.with_node and self._settings.with_operator:
            await self._start_bridge()
            await self._await_clouds()

    async def _install_kinds(self) -> None:
        try:
            await install(credentials.inside_path(self._home, "admin"))
        except TimeoutError as error:
            raise StartFailed("The API server did not accept and serve Skysail's CRDs in time.") from error
        self._report_step("the kinds of Skysail are installed")

    async def _start_operator(self) -> None:
        login = credentials.inside_path(self._home, "operator")
        files.token(self._home.audit_token)
        # No drain: the operator stops together with its API server, and no other replica takes over.
        flags = (
            f"--kubeconfig={login}",
            f"--webhook-host={CLUSTER_IP}",
            "--drain-seconds=0",
            "--single-replica",
            f"--audit-token={self._home.audit_token}",
            *(f"--model-source={place}" for place in MODEL_SOURCES),
            *self._cloud_flags(),
        )
        run = (sys.executable, "-P", "-m", "skysail", "run", *flags)
        await self._supervisor.start(Unit(name="operator", argv=run, env=self._cloud_env(), ports=OPERATOR_PORTS))
        is_ready = partial(startup.is_healthy, _OPERATOR_READY)
        await startup.until(is_ready, "the operator to be ready", self._supervisor)
        self._report_step("the operator is ready")

    def _cloud_env(self) -> dict[str, str]:
        """Return the way out to real clouds, and variables that point real accounts to stand-ins.

        The operator and the bridge need the same: the bridge serves only instances of the account that it has.
        """
        env = egress_proxy.operator_env() if self._settings.with_node else {}
        for cloud in self._settings.stand_ins:
            env |= stand_ins.environment(self._home, cloud)
        return env

    def _cloud_flags(self) -> tuple[str, ...]:
        """Return flags for cloud nodes, which exist if this machine has a node."""
        if not self._settings.with_node:
            return ()
        home = self._home.root
        return (
            f"--node-address={CLUSTER_IP}",
            f"--node-certificate={self._home.pki / 'node.crt'}",
            f"--node-key={self._home.pki / 'node.key'}",
            f"--data-dir={home / 'clouds'}",
            f"--bridge-address={CLUSTER_IP}",
            *self._account_flags(),
        )

    def _account_flags(self) -> tuple[str, ...]:
        """Return flags for cloud accounts: simulated clouds, served by the agent, unless mock clouds were requested."""
        if self._settings.mock_clouds:
            return ("--mock-clouds",)
        home = self._home
        simulated_clouds.token(home)
        return (
            f"--simulated-cloud-url={home.simulated_clouds}",
            f"--simulated-cloud-token-file={home.simulated_cloud_token_file}",
        )

    async def _start_bridge(self) -> None:
        """Start the bridge to pods at clouds. Mock clouds run nothing to connect to."""
        if self._settings.mock_clouds:
            return
        login = credentials.inside_path(self._home, "bridge")
        flags = (f"--kubeconfig={login}", f"--host={CLUSTER_IP}", "--drain-seconds=0", *self._account_flags())
        run = (sys.executable, "-P", "-m", "skysail", "bridge", *flags)
        await self._supervisor.start(Unit(name="bridge", argv=run, env=self._cloud_env(), grace=30.0))
        is_ready = partial(startup.is_healthy, f"http://{CLUSTER_IP}:{_SETTINGS.bridge_health_port}/readyz")
        await startup.until(is_ready, "the bridge to be ready", self._supervisor)
        self._report_step("the bridge is ready")

    async def _start_agent(self) -> None:
        authority = (self._home.pki / "ca.crt").read_bytes()
        has_nft = await asyncio.to_thread(policy_enforcer.find_nft, os.environ.get("PATH", "")) is not None
        try:
            await install_node(credentials.inside_path(self._home, "admin"), authority, enforces_policies=has_nft)
        except TimeoutError as error:
            raise StartFailed("The API server did not accept the objects of the node in time.") from error
        run = (sys.executable, "-P", "-m", "skysail.app.node_agent", str(self._home.root))
        await self._supervisor.start(Unit(name="agent", argv=run, ports=AGENT_PORTS))
        # Wait for the socket, which opens last: the Node object may still be Ready from the previous agent.
        answers = partial(_accepts_connections, self._home.simulated_clouds)
        await startup.until(answers, "the agent to answer", self._supervisor)

    async def _await_node(self) -> None:
        transport = HttpTransport(kubeconfig.from_file(credentials.inside_path(self._home, "admin")))
        try:
            await startup.until(partial(_node_is_ready, Client(transport)), "the node to be ready", self._supervisor)
        finally:
            await transport.close()
        self._report_step(f"node {NODE} is ready")

    async def _await_clouds(self) -> None:
        """Wait until all clouds are reachable, up to a timeout: the cluster is usable while a cloud is down."""
        login = credentials.inside_path(self._home, "admin")
        deadline = time.monotonic() + _CLOUD_SECONDS
        while unreached := await _unreached(login):
            if time.monotonic() > deadline:
                self._report_step(f"not reached yet: {', '.join(unreached)}; run `skysail status` for the reason")
                return
            await asyncio.sleep(_RETRY_SECONDS)
        self._report_step("the clouds can be reached")

    def _report_step(self, step: str) -> None:
        self._steps.append(step)
        _log(step)

    async def _handle(self, request: Request) -> Answer | socket.socket:
        match request:
            case control_client.AskStatus():
                return Answer(status=self._status())
            case control_client.StopCluster():
                self._stop.set()
            case control_client.StartUnit(unit):
                await self._supervisor.start(unit)
            case control_client.ResumeUnit(name):
                await self._supervisor.resume(name)
            case control_client.StopUnit(name):
                await self._supervisor.stop(name)
            case control_client.SignalUnit(name, number):
                self._supervisor.signal(name, number)
            case control_client.Listen(host, port):
                return _listen(host, port)
            case control_client.Dial(host, port):
                return await asyncio.wait_for(_dial(host, port), _DIAL_SECONDS)
        return Answer()

    def _status(self) -> LocalClusterStatus:
        return LocalClusterStatus(
            is_ready=self._is_ready and not self._stop.is_set(),
            pid=self._outer_pid,
            started=self._started,
            url=self._url,
            with_operator=self._settings.with_operator,
            with_audit=self._settings.plane.audit,
            mock_clouds=self._settings.mock_clouds,
            stand_ins=self._settings.stand_ins,
            steps=tuple(self._steps),
            units=self._supervisor.status(),
        )


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(128)
    return listener


async def _dial(host: str, port: int) -> socket.socket:
    connection = socket.socket()
    connection.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(connection, (host, port))
    except BaseException:
        connection.close()
        raise
    return connection


def _flatten(failures: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """Yield the failures of nested task groups, at any depth."""
    for failure in failures.exceptions:
        if isinstance(failure, BaseExceptionGroup):
            yield from _flatten(failure)
        else:
            yield failure


async def _accepts_connections(path: Path) -> bool:
    try:
        with reachable(path) as name:
            _, writer = await asyncio.open_unix_connection(name)
    except OSError:
        return False
    writer.close()
    return True


async def _node_is_ready(client: Client) -> bool:
    try:
        node = await client.get(resources.NODE, "", NODE, registrar.NodeObject)
    except KubeError:
        return False
    return any(row["type"] == "Ready" and row["status"] == "True" for row in node.status.conditions)


async def _unreached(login: Path) -> list[str]:
    """Return cloud nodes whose cloud is not reachable, by the operator's health page or by the Node object."""
    nodes = _SETTINGS.nodes
    try:
        reported = {cost.node for cost in await cloud_costs.read(login, time.time()) if not cost.outage}
    except KubeError:
        reported = set()
    return [
        name
        for name, node in nodes.items()
        if name not in reported or not await startup.is_healthy(f"{_OPERATOR_READY}/{node.provider}")
    ]


def _last_port(home: Home) -> int:
    try:
        return int(home.api_port_file.read_text())
    except (FileNotFoundError, ValueError):
        return 0


def _log(line: str) -> None:
    print(datetime.now(UTC).isoformat(timespec="milliseconds"), line, flush=True)  # noqa: T201 (stdout is cluster.log)


if __name__ == "__main__":
    os.closerange(3, open_files.limit())  # files and locks of the caller, who does not expect them to stay open
    sys.exit(main(sys.argv[1]))
