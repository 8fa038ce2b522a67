"""The fifth part: pods at Modal's stand-in, through the vendor's SDK, beside the same pods at a simulated cloud.

Both clouds are served by the node agent and run each program in a sandbox of node `local`. So the table shows the cost
of the SDK and of Modal's protocol: in the operator, and for a pod. It also shows the memory of an operator with many
sandboxes that run.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from bench import pods, process
from bench.clouds_seen import NODE_NAME, CloudPods, lift_limit
from bench.table import Row
from bench.writes import written
from skysail.app import simulated_clouds, stand_ins
from skysail.app.local_cluster import OPERATOR_PORTS
from skysail.claims.types import CLOUD_INSTANCE
from skysail.cloud.simulated import ledger
from skysail.kube.api.objects import Key, Object
from skysail.kube.api.resources import NODE
from skysail.kube.client import kubeconfig
from skysail.kube.client.client import Client
from skysail.kube.client.errors import NotFound
from skysail.kube.client.http_transport import HttpTransport
from skysail.local.addresses import CLUSTER_IP
from skysail.local.cluster.control_client import Control
from skysail.local.cluster.home import Home
from skysail.local.cluster.supervisor import Unit
from skysail.local.control_plane import credentials

SIMULATED, STAND_IN = "simulated cloud", "Modal's stand-in"
_OPERATOR = "bench-modal-operator"
# The simulated cloud starts its program at once, as the stand-in does.
_AT_ONCE = "start=0s,lag=0s"
_SHORT, _LONG, _FOR_EVER = "sleep 1", "sleep 20", "sleep 36000"
# With few launches per hour, the brake would be measured.
_NO_BRAKE = {"SKYSAIL_LAUNCHES_PER_NAMESPACE": "100000", "SKYSAIL_LAUNCHES_PER_CLOUD": "100000"}
# A machine of two cores starts several sandboxes in a second.
_TIMEOUT_SECONDS = 1800.0
# All periodic work happens in this time, such as the checks of silent output.
_WINDOW_SECONDS = 60.0
_SETTLE_SECONDS = 10.0


class Contestant(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds for each pod, of pods `alone` and `together`; costs of the operator.

    `cpu` is for one pod of many. `busy_cpu` is for a second with `sandboxes` that run. Memory is in MB.
    """

    called: tuple[list[float], list[float]]
    running: tuple[list[float], list[float]]
    ended: tuple[list[float], list[float]]
    all_running: float
    cpu: float
    writes: float
    idle_memory: float
    busy_memory: float
    idle_cpu: float
    busy_cpu: float


class ModalFigures(msgspec.Struct, frozen=True, kw_only=True):
    many: int
    sandboxes: int
    contestants: dict[str, Contestant]


def run(starts: int, many: int, sandboxes: int, say: Callable[[str], None]) -> ModalFigures:
    with pods.cluster(say) as home:
        for unit in ("bridge", "operator"):
            Control(home.control).stop_unit(unit)
        found = {
            name: asyncio.run(_measure(_Scene(home, name), starts, many, sandboxes, say))
            for name in (SIMULATED, STAND_IN)
        }
    return ModalFigures(many=many, sandboxes=sandboxes, contestants=found)


def rows(figures: ModalFigures) -> list[Row]:
    each = list(figures.contestants.values())
    found = []
    for index, how in enumerate(("one by one", f"{figures.many} at once")):
        for what, values in (
            ("bound to the cloud's call", [one.called[index] for one in each]),
            ("bound to pod Running", [one.running[index] for one in each]),
            ("ended at the cloud to pod Succeeded", [one.ended[index] for one in each]),
        ):
            found.append(Row(f"{how}: {what}, p50, ms", [pods.at(seconds, 50) for seconds in values]))
            found.append(Row("  p99, ms", [pods.at(seconds, 99) for seconds in values]))
    return [
        *found,
        Row(f"{figures.many} at once: created to all Running, s", [one.all_running for one in each]),
        Row("  processor time of the operator for a pod, ms", [one.cpu * 1000 for one in each]),
        Row("  writes for the life of a pod", [one.writes for one in each]),
        Row("memory of the operator without sandboxes, MB", [one.idle_memory for one in each]),
        Row(f"  with {figures.sandboxes} that run, MB", [one.busy_memory for one in each]),
        Row("processor time in a second without sandboxes, ms", [one.idle_cpu * 1000 for one in each]),
        Row(f"  with {figures.sandboxes} that run, ms", [one.busy_cpu * 1000 for one in each]),
    ]


def remarks(figures: ModalFigures) -> list[str]:
    return [
        f"{name}: a sandbox that runs costs the operator "
        f"{(one.busy_memory - one.idle_memory) / figures.sandboxes * 1000:.0f} kB."
        for name, one in figures.contestants.items()
    ]


class _Scene:
    """One contestant: its operator, and its ledger."""

    def __init__(self, home: Home, name: str) -> None:
        self._control = Control(home.control)
        self._home = home
        self._is_stand_in = name == STAND_IN
        # Also in the argument by which the process is found.
        self._folder = home.root / ("bench-stand-in" if self._is_stand_in else "bench-simulated")
        self.name = name
        self.space = f"bench-{self._folder.name}"

    @property
    def kubeconfig(self) -> Path:
        return self._home.kubeconfig

    @property
    def pid(self) -> int:
        """As this process sees it: inside the local cluster it has another one."""
        return process.find(f"--data-dir={self._folder}")

    async def start(self, client: Client) -> None:
        """Start the operator. Returns when its node is there, and not that of the operator before it."""
        with suppress(NotFound):
            await client.delete(NODE, await client.get(NODE, "", NODE_NAME, Object), Object)
        await asyncio.to_thread(self._control.start_unit, self._unit())
        while True:
            try:
                await client.get(NODE, "", NODE_NAME, Object)
            except NotFound:
                await asyncio.sleep(0.1)
            else:
                return

    async def stop(self) -> None:
        await asyncio.to_thread(self._control.stop_unit, _OPERATOR)

    def rows(self) -> list[ledger.Row]:
        if self._is_stand_in:
            return stand_ins.read_ledger(self._home, "modal")
        whole, _, _ = (self._home.root / "simulated" / "modal.jsonl").read_bytes().rpartition(b"\n")
        return msgspec.json.Decoder(ledger.Row).decode_lines(whole)

    def _unit(self) -> Unit:
        flags = (
            f"--kubeconfig={credentials.inside_path(self._home, 'operator')}",
            "--no-webhooks",
            "--drain-seconds=0",
            "--log-level=warning",
            f"--node-address={CLUSTER_IP}",
            f"--data-dir={self._folder}",
            *self._account_flags(),
        )
        argv = (sys.executable, "-P", "-m", "skysail", "run", *flags)
        # The local cluster holds these ports for its own operator.
        return Unit(name=_OPERATOR, argv=argv, env={**_NO_BRAKE, **self._environment()}, ports=OPERATOR_PORTS)

    def _account_flags(self) -> tuple[str, ...]:
        if self._is_stand_in:
            return ()
        simulated_clouds.token(self._home)
        return (
            f"--simulated-cloud-url={self._home.simulated_clouds}",
            f"--simulated-cloud-token-file={self._home.simulated_cloud_token_file}",
        )

    def _environment(self) -> Mapping[str, str]:
        return stand_ins.environment(self._home, "modal") if self._is_stand_in else {}


async def _measure(scene: _Scene, starts: int, many: int, sandboxes: int, say: Callable[[str], None]) -> Contestant:
    transport = HttpTransport(kubeconfig.from_file(scene.kubeconfig))
    client = Client(transport)
    try:
        await lift_limit(client)
        await scene.start(client)
        await pods.populate(client, scene.space)
        async with CloudPods(client, _TIMEOUT_SECONDS).watched() as seen:
            say(f"{scene.name}: {starts} pods, one after another")
            first, *others = [Key(scene.space, f"one-{n}") for n in range(starts + 1)]
            await seen.live(first, simulate=_AT_ONCE, script=_SHORT)  # pays for what is made once
            alone = [(await seen.live(key, simulate=_AT_ONCE, script=_SHORT))[0] for key in others]
            await _no_claims(client)
            idle_cpu, idle_memory = await _cost(scene.pid)
            say(f"{scene.name}: {many} pods at once")
            cpu, before = process.cpu_of(scene.pid), await written(transport)
            keys = [Key(scene.space, f"many-{n}") for n in range(many)]
            together = await seen.live(*keys, simulate=_AT_ONCE, script=_LONG)
            await _no_claims(client)
            cpu, writes = process.cpu_of(scene.pid) - cpu, await written(transport) - before
            say(f"{scene.name}: {sandboxes} sandboxes that run")
            keys = [Key(scene.space, f"live-{n}") for n in range(sandboxes)]
            live = await seen.create(*keys, simulate=_AT_ONCE, script=_FOR_EVER)
            await seen.until("Running", *(pod.metadata.uid for pod in live))
            busy_cpu, busy_memory = await _cost(scene.pid)
            await seen.delete(*live)
            await _no_claims(client)
            lives = [_lives(scene, seen, uids) for uids in (alone, together)]
        await scene.stop()
    finally:
        await transport.close()
    begin = min(seen.bound[uid] for uid in together)
    return Contestant(
        called=(lives[0][0], lives[1][0]),
        running=(lives[0][1], lives[1][1]),
        ended=(lives[0][2], lives[1][2]),
        all_running=max(seen.first(uid, "Running", "Succeeded") for uid in together) - begin,
        cpu=cpu / many,
        # This program creates and deletes each pod.
        writes=sum(n for write, n in writes.items() if write.resource in {"pods", "cloudinstances"}) / many - 2,
        idle_memory=idle_memory,
        busy_memory=busy_memory,
        idle_cpu=idle_cpu,
        busy_cpu=busy_cpu,
    )


def _lives(scene: _Scene, seen: CloudPods, uids: list[str]) -> tuple[list[float], list[float], list[float]]:
    """Return seconds from bound to the call and to Running, and from the end of each program to Succeeded.

    Modal does not say when a program starts: a sandbox without a GPU is Running when Modal has accepted it.
    """
    at = {(row.claim, row.verb): row.at for row in scene.rows()}
    return (
        [at[f"{uid}-0", "create"] - seen.bound[uid] for uid in uids],
        [seen.first(uid, "Running", "Succeeded") - seen.bound[uid] for uid in uids],
        [seen.seen[uid, "Succeeded"] - at[f"{uid}-0", "exited"] for uid in uids],
    )


async def _cost(pid: int) -> tuple[float, float]:
    """Return processor seconds of the operator in a second, and its memory in MB afterwards."""
    await asyncio.sleep(_SETTLE_SECONDS)
    cpu = process.cpu_of(pid)
    await asyncio.sleep(_WINDOW_SECONDS)
    return (process.cpu_of(pid) - cpu) / _WINDOW_SECONDS, process.memory(pid)


async def _no_claims(client: Client) -> None:
    """Wait until the last claim is gone: its end is confirmed after that of its pod."""
    while True:
        page = await client.list_page(CLOUD_INSTANCE.resource, "", {"limit": "1"})
        if not msgspec.json.decode(page)["items"]:
            return
        await asyncio.sleep(0.1)
