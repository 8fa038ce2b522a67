"""Endpoints and functions as Apps of a cloud, with the real controllers, claims and node: one App for each object."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import msgspec

from skysail.base.names import Annotation, Label
from skysail.cloud.simulated import billing
from skysail.kinds.modal_endpoints.types import KINDS, MODAL_ENDPOINT, MODAL_FUNCTION
from skysail.kube.api.resources import CONFIG_MAP, DEPLOYMENT, POD, SERVICE
from tests.simulation import runner
from tests.simulation.deployments import REPLICA_SET, DeploymentController
from tests.simulation.offload import CLUSTER, NODE, OPTIONAL, RESOURCES, VOLATILE, CloudFixture, CloudOperator
from tests.simulation.runner import Scenario
from tests.simulation.spending import Administrator
from tests.simulation.translated import add_endpoints

if TYPE_CHECKING:
    from skysail.kube.api.resources import Resource
    from tests.contract.api_dsl import Api
    from tests.simulation.operator_process import Process
    from tests.simulation.ownership import Object
    from tests.simulation.runner import Bill, Outcome
    from tests.simulation.world import World

_SPEC = {
    "image": "python:3.11",
    "handler": "app.handler",
    "code": {"inline": "def handler(): return 1"},
    "env": {"SKYSAIL_SIMULATE": "start=20s,run=40h"},
}


class AppFixture(CloudFixture):
    """The account, and the law of this story: at rest, each object has one App."""

    def bill(self, world: World) -> Bill:
        found = super().bill(world)
        objects = [obj for kind in KINDS for obj in world.objects.get(kind.resource, {}).values()]
        apps = [row for row in billing.billable(self.ledger.rows) if row.cluster == CLUSTER]
        wrong = [] if len(apps) == len(objects) else [f"{len(objects)} objects have {len(apps)} Apps"]
        return msgspec.structs.replace(found, wrong=[*found.wrong, *wrong])


class AppOperator(CloudOperator):
    """An operator with one cloud that has Apps."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        add_endpoints(process, has_apps=True)


class Endpoints(DeploymentController):
    """Rolls out the Deployments of endpoints, and binds their pods to the node of the cloud."""

    def _ours(self) -> list[Object]:
        there = [each for each in self.all(DEPLOYMENT) if "deletionTimestamp" not in each["metadata"]]
        return [each for each in there if Label.ENDPOINT_UID in each["metadata"].get("labels", {})]

    def make(self, resource: Resource, owner: Object, name: str, **content: Any) -> None:
        if resource == POD:
            content["spec"] = {**content["spec"], "nodeName": NODE}
            # As the controller of offloaded pods writes it from the claim, which does not run in this scenario.
            content["annotations"] = {Annotation.MODAL_FUNCTION_URL.value: "https://app.example"}
        super().make(resource, owner, name, **content)

    def _is_available(self, deployment: Object, pod: Object) -> bool:
        rows = pod.get("status", {}).get("conditions", [])
        is_ready = any((row["type"], row["status"]) == ("Ready", "True") for row in rows)
        return is_ready and "deletionTimestamp" not in pod["metadata"]


def _applied(kind: Any, name: str, **spec: Any) -> Any:
    async def step(api: Api) -> None:
        manifest = {"metadata": {"name": name}, "spec": {**_SPEC, **spec}}
        (await api.apply(kind.resource, manifest, "kubectl")).ok  # noqa: B018 (asserts)
        await api.until(kind.resource, name, _serves)

    return step


def _deleted(kind: Any, name: str) -> Any:
    async def step(api: Api) -> None:
        (await api.delete(kind.resource, name)).ok  # noqa: B018 (asserts)

    return step


def _serves(obj: Object | None) -> bool:
    return bool(obj) and obj.get("status", {}).get("phase") in {"Ready", "Deployed"}


def _scenario(name: str, *steps: Any) -> Scenario:
    return Scenario(
        name=name,
        resources=(
            *RESOURCES,
            *(kind.resource for kind in KINDS),
            DEPLOYMENT,
            REPLICA_SET,
            SERVICE,
            CONFIG_MAP,
        ),
        residents=(Administrator, Endpoints),
        build=AppOperator,
        steps=steps,
        outside=AppFixture,
        # The hash is also one of the owner's UID, which depends on the order in which the objects were created.
        volatile=VOLATILE | {"created_at", "deployed_at", Annotation.LAST_APPLIED_HASH.value},
        optional=OPTIONAL,
    )


_FUNCTION = _applied(MODAL_FUNCTION, "fn")
_ENDPOINT = _applied(MODAL_ENDPOINT, "web", min_replicas=1, max_replicas=1)
SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        _scenario("function", _FUNCTION),
        _scenario("function updated", _FUNCTION, _applied(MODAL_FUNCTION, "fn", timeout=77)),
        _scenario("endpoint scaled", _ENDPOINT, _applied(MODAL_ENDPOINT, "web", min_replicas=1, max_replicas=3)),
        _scenario(
            "endpoint updated", _ENDPOINT, _applied(MODAL_ENDPOINT, "web", min_replicas=1, max_replicas=1, timeout=77)
        ),
        _scenario("endpoint and function deleted", _ENDPOINT, _FUNCTION, _deleted(MODAL_ENDPOINT, "web")),
    )
}


@functools.cache
def reference(name: str) -> Outcome:
    return runner.reference(SCENARIOS[name])
