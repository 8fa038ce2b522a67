"""A real control plane for tests: a local cluster of its own in a temporary home, with our kinds installed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
from datetime import UTC, datetime
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from skysail.app.install import install_node
from skysail.base.unix_sockets import reachable
from skysail.kube.certificates import KeyPair
from skysail.kube.client import kubeconfig
from skysail.local import addresses, files, launcher
from skysail.local.cluster.control_client import Control
from skysail.local.cluster.home import Home
from skysail.local.cluster.supervisor import Unit, UnitStatus
from skysail.local.control_plane import binaries, build, credentials, pki
from skysail.local.control_plane.flags import Component, PlaneOptions
from skysail.local.errors import Refused
from skysail.local.launcher import LocalClusterSettings
from tests.support import rights

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

# Long, because a machine may be busy with other things; no test passes by waiting.
_TIMEOUT_SECONDS = 600.0
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.02, 0.5
_COMPACTION = Path(__file__).with_name("compaction.py")
_AUDIT_POLICY = Path(__file__).with_name("audit_policy.yaml")


class Cluster:
    """Starts when entered; leaves no process when left. `extra` shortens upstream's long waits, by component.

    With `with_node` the local cluster starts the node itself, with the egress proxy, as `skysail up` does. Without
    `with_kinds` nothing of Skysail is installed.
    """

    def __init__(
        self,
        root: Path,
        *,
        extra: Mapping[str, tuple[str, ...]] | None = None,
        with_node: bool = False,
        with_kinds: bool = True,
    ) -> None:
        self.home = Home(root)
        self.control = Control(self.home.control)
        self.binaries = binaries.locate(
            build.BuildDependencies(
                env=os.environ, cache=build.cache_folder(os.environ), report=print, sleep=time.sleep
            )
        )
        self._settings = LocalClusterSettings(
            home=str(root),
            binaries=self.binaries,
            plane=PlaneOptions(audit=True, durable=False, extra=_one_audit_log(extra or {})),
            with_operator=False,
            with_node=with_node,
            with_kinds=with_kinds,
            tied=True,
        )

    def __enter__(self) -> Self:
        launcher.start(self._settings, report=lambda _: None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        launcher.stop(self.home, _TIMEOUT_SECONDS)
        if self.home.audit_log.exists():
            rights.record(self.home.audit_log)

    @property
    def kubeconfig(self) -> Path:
        """The admin's, through the door."""
        return self.home.kubeconfig

    def kubectl(
        self, *arguments: str, stdin: str | None = None, as_user: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the cluster's kubectl. The caller looks at its exit code."""
        env = {
            **os.environ,
            "KUBECONFIG": str(as_user or self.kubeconfig),
            "KUBECACHEDIR": str(self.home.kubectl_cache),
        }
        command = [*self.binaries.commands[Component.KUBECTL], *arguments]
        return subprocess.run(command, env=env, input=stdin, capture_output=True, text=True, check=False)

    def user(self, name: str, *groups: str, inside: bool = False) -> Path:
        """A kubeconfig of a real user with a certificate; RBAC says what they may. `inside` is for units."""
        path = self.home.credentials / f"user-{name.replace(':', '-')}{'-inside' if inside else ''}.kubeconfig"
        server = addresses.API_URL if inside else kubeconfig.from_file(self.kubeconfig).server
        now = datetime.now(UTC)
        credentials.write(path, self._pki(), pki.Identity(name, groups), server=server, now=now)
        return path

    @property
    def operator_kubeconfig(self) -> Path:
        """The operator's identity under the generated RBAC, from inside the local cluster."""
        return credentials.inside_path(self.home, "operator")

    def start_operator(  # noqa: PLR0913 (each for some test)
        self,
        name: str = "operator",
        *,
        kubeconfig: Path | None = None,
        flags: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
        health_port: int | None = None,
        restart: bool = False,
        ports: tuple[int, ...] = (),
    ) -> None:
        """The operator as a process under the generated RBAC. Returns when it is ready."""
        self.begin_operator(
            name, kubeconfig=kubeconfig, flags=flags, env=env, health_port=health_port, restart=restart, ports=ports
        )
        port = health_port or addresses.OPERATOR_HEALTH_PORT
        self.until(lambda: self._is_ready(name, port), f"{name} to be ready")

    def end_operator(self, name: str = "operator") -> None:
        """Stop one that is restarted, which may have had to be because the machine stood still or a test killed it."""
        crash = self.unit(name).crash
        self.stop(name)
        was_killed = crash is not None and crash.code == -signal.SIGKILL
        assert crash is None or was_killed or "lease lost" in crash.log_tail, crash.log_tail

    def until_asking(self) -> None:
        """Until the API server asks the operator about what comes in, some time after the operator was elected.

        Before that, a GPU that is requested without a limit is refused.
        """
        container = {"name": "c", "image": "x", "resources": {"requests": {"nvidia.com/gpu": 1}}}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "asked"}, "spec": {"containers": [container]}}
        dry = ("create", "--dry-run=server", "-n", "default", "-f", "-")
        self.until(lambda: self.kubectl(*dry, stdin=json.dumps(pod)).returncode == 0, "the operator to be asked")

    def begin_operator(  # noqa: PLR0913 (as above)
        self,
        name: str = "operator",
        *,
        kubeconfig: Path | None = None,
        flags: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
        health_port: int | None = None,
        restart: bool = False,
        ports: tuple[int, ...] = (),
    ) -> None:
        """As `start_operator`, for one that may never be ready."""
        files.token(self.home.audit_token)
        run = (
            sys.executable,
            "-P",
            "-m",
            "skysail",
            "run",
            f"--kubeconfig={kubeconfig or self.operator_kubeconfig}",
            f"--webhook-host={addresses.CLUSTER_IP}",
            "--drain-seconds=0",
            f"--audit-token={self.home.audit_token}",
            *(f"--model-source={place}" for place in addresses.MODEL_SOURCES),
            *([f"--health-port={health_port}"] if health_port else []),
            *flags,
        )
        self.control.start_unit(Unit(name=name, argv=run, env=env or {}, restart=restart, ports=ports))

    def start_agent(self) -> None:
        """The node `local` as a process. Returns when it is ready; it is restarted when it is killed."""
        asyncio.run(install_node(self.kubeconfig, self._pki().authority, enforces_policies=True))
        argv = (sys.executable, "-m", "skysail.app.node_agent", str(self.home.root))
        self.control.start_unit(Unit(name="agent", argv=argv))
        # The node may still be called ready because of the agent before this one: this socket opens last.
        self.until(self.serves_clouds, "the agent to answer")
        self.until(self._node_is_ready, "node local to be ready")

    def remove_agent(self) -> None:
        """And its node with it: a pod that was bound there while it still counts as ready would never end."""
        self.stop("agent")
        self.kubectl("delete", "node", addresses.NODE, "--ignore-not-found")

    def serves_clouds(self) -> bool:
        """Whether an agent serves the simulated clouds now."""
        with socket.socket(socket.AF_UNIX) as line:
            try:
                with reachable(self.home.simulated_clouds) as name:
                    line.connect(name)
            except OSError:
                return False
        return True

    def _node_is_ready(self) -> bool:
        jsonpath = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
        return self.kubectl("get", "node", addresses.NODE, "-o", jsonpath).stdout == "True"

    def stop(self, name: str) -> None:
        """TERM a unit, and wait until it is gone."""
        self.control.stop_unit(name)

    def resume(self, name: str) -> None:
        self.control.resume_unit(name)

    def signal(self, name: str, number: int = signal.SIGKILL) -> None:
        self.control.signal_unit(name, number)

    def unit(self, name: str) -> UnitStatus:
        return next(unit for unit in self.control.status().units if unit.name == name)

    def log(self, name: str) -> str:
        """All that units of this name have said, also those of tests before."""
        path = self.home.logs / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def dial(self, port: int, host: str = addresses.CLUSTER_IP) -> socket.socket:
        return self.control.dial(host, port)

    def listen(self, port: int = 0, host: str = addresses.CLUSTER_IP) -> socket.socket:
        return self.control.listen(host, port)

    def get(
        self, path: str, port: int = addresses.OPERATOR_HEALTH_PORT, host: str = addresses.CLUSTER_IP
    ) -> tuple[int, str]:
        """An HTTP request to something inside the local cluster: status and body."""
        connection = HTTPConnection(host, port)
        connection.sock = self.dial(port, host)
        try:
            connection.request("GET", path)
            reply = connection.getresponse()
            return reply.status, reply.read().decode()
        finally:
            connection.close()

    def certificate(self, *names: str) -> KeyPair:
        """A server's certificate that everybody in the cluster trusts."""
        return self._pki().cluster.server(names, datetime.now(UTC))

    def audit(self, since: int = 0) -> list[dict[str, Any]]:
        """Every request that the API server finished, in order; since the log had this size.

        A request may be answered a moment before it is here.
        """
        with self.home.audit_log.open("rb") as log:
            log.seek(max(since - 1, 0))
            text = log.read()
        # The first line may have begun before, and the last one may be written right now.
        whole = (text.partition(b"\n")[2] if since else text).rpartition(b"\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    @property
    def audited(self) -> int:
        """The size of the audit log."""
        return self.home.audit_log.stat().st_size

    def compact(self) -> None:
        """Make etcd forget its past."""
        socket_path = urllib.parse.urlsplit(addresses.ETCD_SOCKET).path
        argv = (sys.executable, str(_COMPACTION), socket_path)
        self.control.start_unit(Unit(name="compaction", argv=argv, restart=False))
        self.until(lambda: self.unit("compaction").state == "stopped", "etcd to compact")
        crash = self.unit("compaction").crash
        assert crash is not None, "a unit that ended by itself has a record of it"
        assert crash.code == 0, crash.log_tail

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        """Look until it is so: the other side is another process, so nobody here can be woken.

        Mostly kubectl looks, which takes time on a processor that the other side needs.
        """
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        begin = time.monotonic()
        while not is_so():
            assert time.monotonic() < deadline, f"timeout of {_TIMEOUT_SECONDS:.0f} s waiting for {what}"
            time.sleep(min(_MAX_PAUSE_SECONDS, max(_MIN_PAUSE_SECONDS, 2 * (time.monotonic() - begin))))
            begin = time.monotonic()

    def _is_ready(self, name: str, port: int) -> bool:
        unit = self.unit(name)
        assert unit.state == "running", f"{name} ended: {unit.crash and unit.crash.log_tail}"
        try:
            return self.get("/readyz", port)[0] == 200
        except (Refused, OSError):
            return False

    def _pki(self) -> pki.Pki:
        return pki.ensure(self.home.pki, datetime.now(UTC))


def _one_audit_log(extra: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """After 100 MB another one would be begun, in the middle of some test, and the first be forgotten."""
    server = Component.API_SERVER.value
    flags = ("--audit-log-maxsize=100000", f"--audit-policy-file={_AUDIT_POLICY}")
    return {**extra, server: (*extra.get(server, ()), *flags)}
