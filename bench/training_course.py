"""What each contestant has to do with training jobs: its operator is started, gets them, and is stopped."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from bench import audit, pods, process
from bench.audit import Asked
from bench.meter import Used
from bench.peers import kubeflow, login
from bench.training_jobs import BARE, PYTORCH, TRAINING, Shape
from bench.training_seen import Jobs
from skysail.kube.client.client import Client
from skysail.local.addresses import CLUSTER_IP
from skysail.local.cluster.control_client import Control
from skysail.local.cluster.home import Home
from skysail.local.cluster.supervisor import Unit
from skysail.local.control_plane import credentials

FLOOR, SKYSAIL, TUNED, STOCK = "floor", "Skysail", "Kubeflow tuned", "Kubeflow stock"
_SHAPES = {FLOOR: BARE, SKYSAIL: TRAINING, TUNED: PYTORCH, STOCK: PYTORCH}
# Until what is told after the last status, such as events, is told.
_SETTLE_SECONDS = 3.0
_REPOSITORY = Path(__file__).parent.parent


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds until all pods ran, until all statuses said so, and from pods to status for each job.

    `writes` and `reads` are the operator's own for one job, by verb and resource; `all_writes` are everybody's, and so
    are the milliseconds of a processor in `cpu`: who else is on the machine changes them little.
    """

    pods: float
    statuses: float
    late: list[float]
    writes: dict[str, float]
    reads: dict[str, float]
    all_writes: float
    cpu: float
    used: Used | None


class Course:
    """The same for all of them, on one control plane. `shapes` is what each has to make; `env` is for Skysail."""

    def __init__(
        self,
        home: Home,
        client: Client,
        shapes: Mapping[str, Shape] = _SHAPES,
        env: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._home = home
        self._client = client
        self._shapes = shapes
        self._env = env
        self._entered = 0

    async def at_once(self, name: str, jobs: int) -> Round:
        space = await self._enter(name)
        await self._start(name, space)
        async with Jobs(self._client, self._shapes[name], space).watched() as seen:
            await seen.until_running(await seen.create(["first"]))  # by then everybody is there
            since, began, cpu = self._home.audit_log.stat().st_size, time.monotonic(), self._cpu()
            made = await seen.create(f"many-{each}" for each in range(jobs))
            ran, told = await seen.until_running(made)
            cpu = self._cpu() - cpu
            await asyncio.sleep(_SETTLE_SECONDS)
            asked = audit.asked(self._home.audit_log, since=since, namespace=space)
        used = await self._stop(name)
        return Round(
            pods=ran - began,
            statuses=told - began,
            late=seen.late(made),
            writes=_by(asked, _user(name), jobs, is_write=True),
            reads=_by(asked, _user(name), jobs, is_write=False),
            all_writes=sum(count for each, count in asked.items() if each.verb in audit.WRITES) / jobs,
            cpu=cpu * 1000 / jobs,
            used=used,
        )

    def _cpu(self) -> float:
        return process.cpu_of_tree(int(self._home.pid.read_text()))

    async def alone(self, name: str, starts: int) -> list[float]:
        space = await self._enter(name)
        await self._start(name, space)
        async with Jobs(self._client, self._shapes[name], space).watched() as seen:
            made = []
            for number in range(starts + 1):  # the first one waits for everybody to be there
                made += await seen.create([f"one-{number}"])
                await seen.until_running(made[-1:])
        await self._stop(name)
        return seen.late(made[1:])

    async def held(self, name: str, many: int) -> Used:
        """Made before the operator starts, so that it has to list them all."""
        space = await self._enter(name)
        async with Jobs(self._client, self._shapes[name], space).watched() as seen:
            made = await seen.create((f"held-{each}" for each in range(many)), held=True)
            await self._start(name, space)
            await seen.until_held(made)
        used = await self._stop(name)
        assert used is not None, "only the floor has no operator"
        return used

    async def _enter(self, name: str) -> str:
        """A namespace of its own. It stays as it is: to empty it would take longer than what is measured."""
        self._entered += 1
        space = f"{_unit_name(name)}-{self._entered}"
        await pods.populate(self._client, space)
        return space

    async def _start(self, name: str, space: str) -> None:
        if name == FLOOR:
            return
        unit = _skysail(self._home, space, self._env) if name == SKYSAIL else _kubeflow(self._home, name, space)
        await asyncio.to_thread(Control(self._home.control).start_unit, unit)
        if name != SKYSAIL:
            await kubeflow.mount(self._client)

    async def _stop(self, name: str) -> Used | None:
        if name == FLOOR:
            return None
        await asyncio.to_thread(Control(self._home.control).stop_unit, _unit_name(name))
        return msgspec.json.decode(_result(self._home, name).read_bytes(), type=Used)


def _skysail(home: Home, space: str, env: Mapping[str, str]) -> Unit:
    """As in a cluster, but without admission, which the other one is spared, too."""
    flags = (
        f"--kubeconfig={credentials.inside_path(home, 'operator')}",
        f"--namespace={space}",
        f"--webhook-host={CLUSTER_IP}",
        "--no-webhooks",
        "--single-replica",
        "--drain-seconds=0",
        "--log-level=warning",
    )
    return _metered(home, SKYSAIL, sys.executable, "-P", "-m", "skysail", "run", *flags, env=env)


def _kubeflow(home: Home, name: str, space: str) -> Unit:
    flags = (f"--kubeconfig={login.write(home, kubeflow.USER)}", f"--namespace={space}")
    tuned = kubeflow.TUNED if name == TUNED else ()
    return _metered(home, name, str(kubeflow.PROGRAM.binary()), *flags, *tuned)


def _metered(home: Home, name: str, *command: str, env: Mapping[str, str] = MappingProxyType({})) -> Unit:
    return Unit(
        name=_unit_name(name),
        argv=(sys.executable, "-m", "bench.meter", str(_result(home, name)), *command),
        env={"PYTHONPATH": str(_REPOSITORY), **env},
        restart=False,
        grace=25.0,
    )


def _unit_name(name: str) -> str:
    return f"bench-{name.lower().replace(' ', '-')}"


def _result(home: Home, name: str) -> Path:
    return home.root / f"{_unit_name(name)}.json"


def _user(name: str) -> str:
    return {FLOOR: "", SKYSAIL: credentials.OPERATOR.name}.get(name, kubeflow.USER)


def _by(asked: Counter[Asked], user: str, jobs: int, *, is_write: bool) -> dict[str, float]:
    """What one user asked for each job, the dearest first."""
    return {
        " ".join(filter(None, each[1:])): count / jobs
        for each, count in asked.most_common()
        if each.user == user and (each.verb in audit.WRITES) == is_write
    }
