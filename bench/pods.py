"""The third part: pods on the node of this machine, beside the same work without Kubernetes.

The floor of a start is the sandbox alone (bubblewrap around a shell); that of a stream is a pipe or a socket that leads
straight to the program. All is measured on one control plane, with the commands that a user types.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec

from bench import pods_traffic
from bench.pods_seen import SPACE, Pods, manifest
from bench.pods_traffic import Beside
from bench.table import Row
from bench.writes import Write, written
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import NAMESPACE, SERVICE_ACCOUNT
from skysail.kube.cache.cache import Cache
from skysail.kube.cache.reflector import Reflector
from skysail.kube.client import kubeconfig
from skysail.kube.client.client import Client
from skysail.kube.client.http_transport import HttpTransport
from skysail.local.bubblewrap.host_tools import HostTools
from skysail.local.cluster.home import Home

COLUMNS = ("direct", "node local")
_MAX_CONCURRENT = 16
# What a node writes about a pod: its status, and the end of one that was deleted.
_BY_NODE = (("PATCH", "status"), ("DELETE", ""))


class PodFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds for each start; `many` pods at once; writes of the node for one pod."""

    running: list[float]
    ready: list[float]
    sandbox: list[float]
    many: int
    many_ready: float
    many_gone: float
    many_sandboxes: float
    writes: float
    traffic: dict[str, Beside]


def run(starts: int, many: int, megabytes: int, say: Callable[[str], None]) -> PodFigures:
    with cluster(say) as home:
        return asyncio.run(_measure(home, starts, many, megabytes, say))


def rows(figures: PodFigures) -> list[Row]:
    alone = figures.sandbox
    return [
        Row("created to Running, p50, ms", [at(alone, 50), at(figures.running, 50)]),
        Row("  p99, ms", [at(alone, 99), at(figures.running, 99)]),
        Row("created to Ready, p50, ms", [at(alone, 50), at(figures.ready, 50)]),
        Row("  p99, ms", [at(alone, 99), at(figures.ready, 99)]),
        Row(f"{figures.many} pods to Ready, s", [figures.many_sandboxes, figures.many_ready]),
        *(Row(what, [pair.direct, pair.ours]) for what, pair in figures.traffic.items()),
    ]


def remarks(figures: PodFigures) -> list[str]:
    return [
        f"The node wrote {figures.writes:.1f} times to the API server about each pod, from its start to its deletion.",
        f"{figures.many} running pods were deleted and gone in {figures.many_gone:.1f} s.",
    ]


async def _measure(home: Home, starts: int, many: int, megabytes: int, say: Callable[[str], None]) -> PodFigures:
    transport = HttpTransport(kubeconfig.from_file(home.kubeconfig))
    try:
        client = Client(transport)
        await populate(client, SPACE)
        async with Pods(client).watched() as pods:
            say(f"starting {starts} pods, one after another")
            before = await _written(transport)
            running, ready, sandbox = await _one_by_one(pods, starts)
            writes = (await _written(transport) - before) / (starts + 1) - 1  # each was deleted once by us
            say(f"starting {many} pods at once")
            many_ready, many_gone = await _at_once(pods, many)
            many_sandboxes = await asyncio.to_thread(_sandboxes, many)
            traffic = await pods_traffic.measure(home, pods, megabytes, say)
    finally:
        await transport.close()
    return PodFigures(
        running=running,
        ready=ready,
        sandbox=sandbox,
        many=many,
        many_ready=many_ready,
        many_gone=many_gone,
        many_sandboxes=many_sandboxes,
        writes=writes,
        traffic=traffic,
    )


async def _one_by_one(pods: Pods, starts: int) -> tuple[list[float], list[float], list[float]]:
    """Created to Running, created to Ready, and the sandbox alone: in turns, because the machine may be busy."""
    running, ready, alone = [], [], []
    for number in range(-1, starts):  # the first one pays for what is made once
        name = f"one-{number + 1}"
        began = await pods.create(manifest(name, "sleep", "600"))
        took = [await pods.until(state, name) - began for state in ("Running", "Ready")]
        await pods.delete(name)
        await pods.until("gone", name)
        if number >= 0:
            running.append(took[0])
            ready.append(took[1])
            alone.append(await asyncio.to_thread(_sandbox))
    return running, ready, alone


async def _at_once(pods: Pods, many: int) -> tuple[float, float]:
    names = [f"many-{number}" for number in range(many)]
    began = await pods.create(*(manifest(name, "sleep", "600") for name in names))
    ready = await pods.until("Ready", *names) - began
    began = await pods.delete(*names)
    return ready, await pods.until("gone", *names) - began


async def populate(client: Client, space: str) -> None:
    """A namespace in which pods can be made: it has its service account."""
    await client.create(NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}}, Object)
    accounts: Cache[Object] = Cache(SERVICE_ACCOUNT, Object)
    accounts.feeds = (space,)
    there = asyncio.Event()
    accounts.subscribe(lambda _old, _new: there.set())
    watching = asyncio.create_task(Reflector(client, accounts, namespace=space).run())
    await there.wait()
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def _written(transport: HttpTransport) -> int:
    """Writes of the sorts that a node makes about pods."""
    counted = await written(transport)
    return sum(counted[Write("pods", verb, subresource)] for verb, subresource in _BY_NODE)


def _sandbox() -> float:
    """From the wish to the first word of a program in a box."""
    tools = HostTools.find()
    began = time.monotonic()
    argv = [tools.bwrap, "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--unshare-pid", "echo", "up"]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def _sandboxes(many: int) -> float:
    began = time.monotonic()
    with ThreadPoolExecutor(_MAX_CONCURRENT) as workers:
        list(workers.map(lambda _: _sandbox(), range(many)))
    return time.monotonic() - began


@contextmanager
def cluster(say: Callable[[str], None], *flags: str) -> Iterator[Home]:
    with tempfile.TemporaryDirectory(prefix="skysail-bench-") as folder:
        home = Home(Path(folder) / "home")
        try:
            say("starting a cluster")
            skysail("up", f"--home={home.root}", *flags)
            yield home
        finally:
            skysail("down", "--purge", f"--home={home.root}")


def skysail(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "skysail", *arguments], check=True, stdout=subprocess.DEVNULL)


def at(seconds: list[float], percentile: int) -> float:
    """In milliseconds."""
    if len(seconds) == 1:
        return seconds[0] * 1000
    return statistics.quantiles(seconds, n=100, method="inclusive")[percentile - 1] * 1000
