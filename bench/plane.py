"""The second part: end to end on a real control plane, with the commands that a user types.

Each contestant gets a namespace with as many new ModalJobs, is started, and stopped when the last one has its
status. Skysail runs under its own rights, Kopf as the cluster's administrator.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from bench import workload
from bench.at_once import each
from bench.clients.__main__ import KOPF_DEFAULT, KOPF_TUNED, SKYSAIL
from bench.meter import Used
from bench.table import Row, number
from skysail.kinds.training.api.modal_job import MODAL_JOB, ModalJob
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import NAMESPACE
from skysail.kube.cache.cache import Cache
from skysail.kube.cache.reflector import Reflector
from skysail.kube.client import kubeconfig
from skysail.kube.client.client import Client
from skysail.kube.client.http_transport import HttpTransport
from skysail.local.cluster.control_client import Control
from skysail.local.cluster.home import Home
from skysail.local.cluster.supervisor import Unit
from skysail.local.control_plane import credentials

_NAMESPACES = {SKYSAIL: "bench-skysail", KOPF_TUNED: "bench-kopf-tuned", KOPF_DEFAULT: "bench-kopf-default"}
_REPEATS = 3
_TIMEOUT_SECONDS = 120
_REPOSITORY = Path(__file__).parent.parent


class Round(msgspec.Struct, frozen=True):
    """From the start of the process to the last status."""

    seconds: float
    used: Used


class PlaneFigures(msgspec.Struct, frozen=True, kw_only=True):
    """`warm_up` in seconds; `help_cpu` is the processor time of `skysail --help`, in seconds."""

    jobs: int
    rounds: dict[str, Round]
    warm_up: float
    help_cpu: float


def run(jobs: int, say: Callable[[str], None]) -> PlaneFigures:
    with tempfile.TemporaryDirectory(prefix="skysail-bench-") as folder:
        home = Home(Path(folder) / "home")
        try:
            say("starting a control plane (the very first time it is built, which takes minutes)")
            _skysail("up", f"--home={home.root}")
            say(f"starting it anew {_REPEATS} times")
            warm_up = statistics.median(_warm_up(home) for _ in range(_REPEATS))
            Control(home.control).stop_unit("operator")
            rounds = asyncio.run(_rounds(home, jobs, say))
        finally:
            _skysail("down", "--purge", f"--home={home.root}")
    return PlaneFigures(jobs=jobs, rounds=rounds, warm_up=warm_up, help_cpu=_help_cpu())


def rows(figures: PlaneFigures) -> list[Row]:
    rounds = list(figures.rounds.values())
    return [
        Row(f"start to {figures.jobs:,} statuses written, s", [each.seconds for each in rounds]),
        Row("  processor time, s", [each.used.cpu for each in rounds]),
        Row("memory at its highest, MB", [each.used.highest_memory for each in rounds]),
    ]


def remarks(figures: PlaneFigures) -> list[str]:
    return [
        f"A warm `skysail up` takes {number(figures.warm_up)} s, until the operator is ready.",
        f"`skysail --help` takes {figures.help_cpu * 1000:.0f} ms of processor time.",
    ]


def _skysail(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "skysail", *arguments], check=True, stdout=subprocess.DEVNULL)


def _warm_up(home: Home) -> float:
    _skysail("down", f"--home={home.root}")
    began = time.monotonic()
    _skysail("up", f"--home={home.root}")
    return time.monotonic() - began


def _help_cpu() -> float:
    _skysail("--help")  # the first one may have to write bytecode
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(_REPEATS):
        _skysail("--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / _REPEATS


async def _rounds(home: Home, jobs: int, say: Callable[[str], None]) -> dict[str, Round]:
    transport = HttpTransport(kubeconfig.from_file(home.kubeconfig))
    try:
        client = Client(transport)
        say(f"creating {jobs:,} ModalJobs in each of {len(_NAMESPACES)} namespaces")
        for namespace in _NAMESPACES.values():
            await _create(client, namespace, jobs)
        found = {}
        for contestant, namespace in _NAMESPACES.items():
            say(f"{contestant}: {jobs:,} ModalJobs end to end")
            found[contestant] = await _round(home, client, _unit(home, contestant, namespace), namespace, jobs)
    finally:
        await transport.close()
    return found


async def _create(client: Client, namespace: str, jobs: int) -> None:
    await client.create(NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}, Object)
    wanted = (workload.modal_job(job, namespace) for job in range(jobs))
    await each(wanted, lambda manifest: client.create(MODAL_JOB.resource, manifest, Object))


def _unit(home: Home, contestant: str, namespace: str) -> Unit:
    """The contestant as a process inside the local cluster, beside the API server as in a cluster."""
    if contestant == SKYSAIL:
        login = credentials.inside_path(home, "operator")
        command = ["skysail", "run", f"--kubeconfig={login}", f"--namespace={namespace}"]
        command += ["--no-webhooks", "--health-port=18080", "--log-level=warning"]
    else:
        command = ["bench.kopf_handlers", "tuned" if contestant == KOPF_TUNED else "default", namespace]
    result = str(_result(home, namespace))
    admin = str(credentials.inside_path(home, "admin"))
    return Unit(
        name=namespace,
        argv=(sys.executable, "-m", "bench.meter", result, sys.executable, "-m", *command),
        env={"PYTHONPATH": str(_REPOSITORY), "KUBECONFIG": admin},
        restart=False,
        grace=25.0,
    )


def _result(home: Home, namespace: str) -> Path:
    return home.root / f"{namespace}.json"


async def _round(home: Home, client: Client, unit: Unit, namespace: str, jobs: int) -> Round:
    cache = Cache(MODAL_JOB.resource, ModalJob)
    cache.feeds = (namespace,)
    told: set[str] = set()
    all_told = asyncio.Event()

    def changed(_: ModalJob | None, new: ModalJob | None) -> None:
        if new is not None and new.status.observed_generation:
            told.add(new.metadata.name)
            if len(told) == jobs:
                all_told.set()

    cache.subscribe(changed)
    watching = asyncio.create_task(Reflector(client, cache, namespace=namespace).run())
    await cache.synced.wait()
    began = time.monotonic()
    try:
        await asyncio.to_thread(Control(home.control).start_unit, unit)
        await asyncio.wait_for(all_told.wait(), _TIMEOUT_SECONDS)
        seconds = time.monotonic() - began
    except TimeoutError as error:
        log = (home.logs / f"{unit.name}.log").read_text()[-2000:]
        raise RuntimeError(f"{unit.name} told {len(told)} of {jobs} objects, and then:\n{log}") from error
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    await asyncio.to_thread(Control(home.control).stop_unit, unit.name)
    return Round(seconds, msgspec.json.decode(_result(home, namespace).read_bytes(), type=Used))
