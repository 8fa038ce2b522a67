"""Pods without a node that are for a cloud: placement on top of the real claims, node and cloud account."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

from skysail.app.offload import OffloadModule
from skysail.base.settings import NodeSettings, Settings
from skysail.claims.dependencies import ClaimDependencies
from skysail.claims.limits.offload_policy import OFFLOAD_POLICY
from skysail.kube.api.resources import JOB, NODE, POD
from tests.simulation import cloud_scenarios, runner
from tests.simulation.jobs import Sweeper
from tests.simulation.offload import NODE as CLOUD_NODE
from tests.simulation.offload import OPTIONAL, RESOURCES, VENDOR, VOLATILE, CloudFixture, CloudOperator, last_word
from tests.simulation.ownership import Manager
from tests.simulation.runner import Scenario
from tests.simulation.spending import Administrator
from tests.simulation.writes import Write

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.contract.api_dsl import Api
    from tests.simulation.operator_process import Process
    from tests.simulation.ownership import Object
    from tests.simulation.runner import Outcome
    from tests.simulation.world import World

    Step = Callable[[Api], Awaitable[None]]

TAINT = "modal-operator.io/virtual=true:NoSchedule"
SETTINGS = Settings(
    nodes={CLOUD_NODE: NodeSettings(provider=VENDOR.name, port=10260, taint=TAINT)}, autoscaler_wait_seconds=20.0
)
ASK = {"modal-operator.io/offload": "true", "modal-operator.io/gpu": "T4:1"}
_SCHEDULER = Write(Manager("kube-scheduler", "Update", "status"))
_KUBELET = Write(Manager("kubelet", "Update", "status"))
_THOUGHT_SECONDS = 2.0


class Landlord:
    """Has the cloud's node in the cluster, ready."""

    def __init__(self, world: World) -> None:
        kind = world.kinds[NODE]
        labels = {"type": "virtual-kubelet", "kubernetes.io/hostname": CLOUD_NODE}
        node = world.create(kind, {"metadata": {"name": CLOUD_NODE, "labels": labels}}, _KUBELET)
        status = {"conditions": [{"type": "Ready", "status": "True"}]}
        world.replace(kind, node, {**node, "status": status}, _KUBELET)

    def noticed(self, obj: Object, *, gone: bool) -> None: ...


class Scheduler(Sweeper):
    """Finds no node for any pod, and says so after a moment's thought."""

    kinds = (POD,)

    def sweep(self) -> None:
        for pod in self.all(POD):
            if not pod["spec"].get("nodeName") and not _has_verdict(pod):
                asyncio.get_running_loop().call_later(_THOUGHT_SECONDS, self._refuse, pod)

    def _refuse(self, pod: Object) -> None:
        now = self.now(pod)
        if now is None or now["spec"].get("nodeName") or _has_verdict(now):
            return
        verdict = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/1 nodes are available: 1 node(s) had untolerated taint.",
            "lastTransitionTime": self.world.timestamp(),
        }
        status = now.get("status", {})
        wanted = {**now, "status": {**status, "conditions": [*status.get("conditions", ()), verdict]}}
        self.world.replace(self.world.kinds[POD], now, wanted, _SCHEDULER)


def _has_verdict(pod: Object) -> bool:
    return any(row["type"] == "PodScheduled" for row in pod.get("status", {}).get("conditions", ()))


class PlacementOperator(CloudOperator):
    """An operator with one cloud that places pods there."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.module = OffloadModule(
            process.client,
            SETTINGS,
            process,
            manager=self.bureau,
            claims=self.claims,
            deps=ClaimDependencies(process.now, asyncio.get_running_loop().time, process.rng),
        )
        for cache in self.module.new_caches:
            process.fill_only(cache)
        self.module.pods.connect(process.add_controller(self.module.pods, self.module.executor))
        self.module.jobs.connect(process.add_controller(self.module.jobs, self.module.executor))


async def ask(api: Api) -> None:
    await _create(api, metadata={"annotations": ASK})


async def need_a_gpu(api: Api) -> None:
    await _create(api, resources={"limits": {"nvidia.com/gpu": "1"}})


async def wait_for_a_job(api: Api) -> None:
    """A pod that asks for nothing, and its Job does not either."""
    (await api.create(JOB, {"metadata": {"name": "job"}})).ok  # noqa: B018 (asserts)
    await _create(api, metadata=await cloud_scenarios.of_job(api))


async def annotate_the_job(api: Api) -> None:
    (await api.merge(JOB, "job", {"metadata": {"annotations": ASK}})).ok  # noqa: B018 (asserts)


async def forbid(api: Api) -> None:
    (await api.delete(OFFLOAD_POLICY.resource, "default")).ok  # noqa: B018 (asserts)


async def allow(api: Api) -> None:
    spec = {"namespaceSelector": {}, "providers": ["modal"], "maxInstances": 100}
    (await api.create(OFFLOAD_POLICY.resource, {"metadata": {"name": "later"}, "spec": spec})).ok  # noqa: B018 (asserts)


async def delete_before_it_is_bound(api: Api) -> None:
    await ask(api)
    await cloud_scenarios.delete(api)


async def _create(api: Api, *, metadata: Object | None = None, resources: Object | None = None) -> None:
    container: dict[str, Any] = {
        "name": "main",
        "image": "python:3.11",
        "command": ["python", "train.py"],
        "env": [{"name": "SKYSAIL_SIMULATE", "value": "start=20s,run=60s"}],
        **({"resources": resources} if resources else {}),
    }
    spec = {"restartPolicy": "Never", "containers": [container]}
    (await api.create(POD, {"metadata": {"name": "train", **(metadata or {})}, "spec": spec})).ok  # noqa: B018 (asserts)


def _automatic(world: World) -> Administrator:
    return Administrator(world, automatic=True)


def _scenario(name: str, *steps: Step, policy: Any = Administrator, is_race: bool = False) -> Scenario:
    return Scenario(
        name=name,
        resources=RESOURCES,
        residents=(Landlord, policy, Scheduler),
        build=PlacementOperator,
        steps=steps,
        is_race=is_race,
        outside=CloudFixture,
        volatile=VOLATILE,
        optional=OPTIONAL,
        last_word=(lambda _: {}) if is_race else last_word,
    )


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        _scenario("asked", ask, cloud_scenarios.delete),
        _scenario("automatic", need_a_gpu, cloud_scenarios.delete, policy=_automatic),
        _scenario("not automatic", need_a_gpu, cloud_scenarios.delete),
        _scenario("Job annotated later", wait_for_a_job, annotate_the_job, cloud_scenarios.delete),
        _scenario("refused, then allowed", forbid, ask, allow, cloud_scenarios.delete),
        _scenario("deleted before it is bound", delete_before_it_is_bound, is_race=True),
    )
}


@functools.cache
def reference(name: str) -> Outcome:
    return runner.reference(SCENARIOS[name])
