"""TrainingJobs with a gang scheduler in the simulation: a Kueue that admits where there is a flavor, and a PodGroup."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from skysail.kinds.training.api.training_job import TRAINING_JOB
from skysail.kinds.training.scheduling.kueue import FLAVOR, WORKLOAD
from skysail.kinds.training.scheduling.volcano import POD_GROUP
from skysail.kube.api.resources import CRD
from tests.simulation import runner
from tests.simulation.jobs import JobController, Kubelets, Sweeper
from tests.simulation.runner import Scenario
from tests.simulation.training import FOREVER, NAME, VOLATILE, TrainingOperator, change, train

if TYPE_CHECKING:
    from skysail.kube.api.resources import Resource
    from skysail.kube.cache.discovery import Discovery
    from tests.contract.api_dsl import Api
    from tests.simulation.operator_process import Process
    from tests.simulation.ownership import Object
    from tests.simulation.runner import Outcome
    from tests.simulation.training import Step

GANG = f"{NAME}-gang"
_FLAVOR = "spot"


class GangYard(TrainingOperator):
    """An operator that also looks for gang schedulers, while it runs."""

    def discover(self, process: Process) -> Discovery:
        return process.discover(self.caches.gangs)


class KueueController(Sweeper):
    """Admits every Workload as soon as there is a flavor, and takes back what is deactivated."""

    kinds = (WORKLOAD, FLAVOR)

    def sweep(self) -> None:
        for workload in list(self.world.objects.get(WORKLOAD, {}).values()):
            if "deletionTimestamp" not in workload["metadata"] and not _holds(workload, "Finished"):
                self._sync(workload)

    def _sync(self, workload: Object) -> None:
        is_active = workload["spec"].get("active", True)
        if not is_active:
            if not _holds(workload, "Evicted"):
                self._say(workload, ("Evicted", "True", "Deactivated", "The workload is deactivated"))
        elif _holds(workload, "QuotaReserved"):
            return
        elif (None, _FLAVOR) in self._flavors() and self._is_queued(workload):
            self._admit(workload)
        elif _condition(workload, "QuotaReserved") is None:
            self._say(workload, ("QuotaReserved", "False", "WaitingForQuota", "couldn't assign flavors to pod set"))

    def _flavors(self) -> set[tuple[None, str]]:
        return {(None, flavor["metadata"]["name"]) for flavor in self.world.objects.get(FLAVOR, {}).values()}

    def _is_queued(self, workload: Object) -> bool:
        again = _condition(workload, "Requeued")
        return again is None or again["status"] == "True" or again["reason"] == "Deactivated"

    def _admit(self, workload: Object) -> None:
        sets = [{"name": each["name"], "flavors": {"cpu": _FLAVOR}} for each in workload["spec"]["podSets"]]
        said = [("QuotaReserved", "True", "QuotaReserved", "set aside"), ("Admitted", "True", "Admitted", "admitted")]
        if _condition(workload, "Evicted"):
            said.append(("Evicted", "False", "QuotaReserved", "Previously: evicted"))
        admission = {"clusterQueue": "all", "podSetAssignments": sets}
        self._say(workload, *said, admission=admission)

    def _say(self, workload: Object, *rows: tuple[str, str, str, str], **status: Any) -> None:
        found = {row["type"]: row for row in workload.get("status", {}).get("conditions", [])}
        names = ("type", "status", "reason", "message")
        for row in rows:
            told = dict(zip(names, row, strict=True))
            found[row[0]] = {**told, "lastTransitionTime": self.world.timestamp()}
        self.tell(WORKLOAD, workload, {"conditions": list(found.values()), **status})


def install(*resources: Resource) -> Step:
    async def define(api: Api) -> None:
        for resource in resources:
            version = {"name": resource.version, "served": True, "storage": True, "subresources": {"status": {}}}
            spec = {
                "group": resource.group,
                "names": {"plural": resource.plural, "kind": resource.kind},
                "scope": "Namespaced" if resource.namespaced else "Cluster",
                "versions": [version],
            }
            (await api.create(CRD, {"metadata": {"name": resource.crd_name}, "spec": spec})).ok  # noqa: B018 (asserts)

    return define


async def add_flavor(api: Api) -> None:
    spec = {"nodeLabels": {"pool": "spot"}, "tolerations": [{"key": "spot", "operator": "Exists"}]}
    (await api.create(FLAVOR, {"metadata": {"name": _FLAVOR}, "spec": spec})).ok  # noqa: B018 (asserts)


async def evict(api: Api) -> None:
    """As Kueue does for a workload of higher priority."""
    workload = (await api.get(WORKLOAD, GANG)).ok
    told = {"type": "Evicted", "status": "True", "reason": "Preempted", "message": "Preempted to make room"}
    rows = [*workload["status"]["conditions"], {**told, "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    (await api.merge(WORKLOAD, GANG, {"status": {"conditions": rows}}, "status")).ok  # noqa: B018 (asserts)


def activate(*, active: bool) -> Step:
    async def patch(api: Api) -> None:
        (await api.merge(WORKLOAD, GANG, {"spec": {"active": active}})).ok  # noqa: B018 (asserts)

    return patch


def delete_gang(resource: Resource) -> Step:
    async def delete(api: Api) -> None:
        (await api.delete(resource, GANG)).ok  # noqa: B018 (asserts)

    return delete


def all_of(*steps: Step) -> Step:
    async def do(api: Api) -> None:
        for step in steps:
            await step(api)

    return do


def _condition(workload: Object, type_: str) -> Object | None:
    rows = workload.get("status", {}).get("conditions", [])
    return next((row for row in rows if row["type"] == type_), None)


def _holds(workload: Object, type_: str) -> bool:
    return (_condition(workload, type_) or {}).get("status") == "True"


def _scenario(name: str, *steps: Step) -> Scenario:
    return Scenario(
        name=name,
        resources=(TRAINING_JOB.resource,),
        build=GangYard,
        steps=steps,
        residents=(JobController, Kubelets, KueueController),
        volatile=VOLATILE,
    )


_KUEUE = all_of(install(WORKLOAD, FLAVOR), add_flavor)
_QUEUED = {"scheduling": {"gang": "kueue", "queue": "team"}}
_GROUPED = {"scheduling": {"gang": "volcano"}}
_ONCE = "0/* after=never"

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        _scenario("admitted", _KUEUE, train(**_QUEUED)),
        _scenario("waiting, then admitted", install(WORKLOAD, FLAVOR), train(**_QUEUED), add_flavor),
        _scenario("unavailable, then installed", train(**_QUEUED), _KUEUE),
        _scenario("evicted while running", _KUEUE, train(_ONCE, runPolicy={"backoffLimit": 0}, **_QUEUED), evict),
        _scenario(
            "deactivated, then active", _KUEUE, train(_ONCE, **_QUEUED), activate(active=False), activate(active=True)
        ),
        _scenario("Workload deleted by hand", _KUEUE, train(_ONCE, **_QUEUED), delete_gang(WORKLOAD)),
        _scenario("a restart keeps its quota", _KUEUE, train("0/worker-1 exit=3 after=30", _ONCE, **_QUEUED)),
        _scenario("held gives its quota back", _KUEUE, train(_ONCE, **_QUEUED), change(suspend=True)),
        _scenario("another size asks anew", _KUEUE, train(FOREVER, **_QUEUED), change(workers=3)),
        _scenario("no longer asked for", _KUEUE, train(_ONCE, **_QUEUED), change(scheduling=None)),
        _scenario("PodGroup", install(POD_GROUP), train(**_GROUPED)),
        _scenario("PodGroup deleted by hand", install(POD_GROUP), train(FOREVER, **_GROUPED), delete_gang(POD_GROUP)),
        _scenario("PodGroup unavailable", train(**_GROUPED)),
    )
}


@functools.cache
def reference(name: str) -> Outcome:
    return runner.reference(SCENARIOS[name])
