"""Models in the simulation: the real controllers, on a cluster with those of Deployments and Jobs, and kubelets.

Each story is what befalls one model; all of them are played with every trouble. Whatever happens, a model that is
served has as many servers ready as are wanted, until somebody deletes it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from skysail.base.names import Label
from skysail.base.settings import Settings
from skysail.kinds.serving.api.types import KINDS, ML_MODEL, MODEL_DEPLOYMENT
from skysail.kinds.serving.caches import Caches
from skysail.kinds.serving.reconciler import ModelReconciler
from skysail.kinds.serving.spec.config import serving_config
from skysail.kube.api.resources import CONTROLLER_REVISION, DEPLOYMENT, JOB, PERSISTENT_VOLUME_CLAIM, POD, SERVICE
from tests.contract.api_dsl import owned_by
from tests.simulation import runner
from tests.simulation.deployments import (
    REPLICA_SET,
    Autoscaler,
    Binder,
    DeploymentController,
    Hosts,
    PlainJobs,
    is_ready,
)
from tests.simulation.runner import Bill, Scenario

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from skysail.kube.api.crd import CustomKind
    from skysail.kube.api.resources import Resource
    from tests.contract.api_dsl import Api
    from tests.simulation.operator_process import Process
    from tests.simulation.runner import Outcome
    from tests.simulation.watches import Change
    from tests.simulation.world import World

    Step = Callable[[Api], Awaitable[None]]

NAME = "iris"
SERVERS = 2
# Shorter than it takes the runner to believe that all have come to rest.
_TERMS = serving_config(Settings(progress_deadline_seconds=200, min_ready_seconds=10))
VOLATILE = frozenset({"startedAt", "finishedAt", "failureTime", "lastUpdatedTime"})


class ServingOperator:
    """An operator with the controllers of both kinds."""

    def __init__(self, process: Process) -> None:
        caches = Caches.create()
        for cache in (*caches.models.values(), *caches.children):
            process.fill(cache)
        for kind in KINDS:
            controller = ModelReconciler(kind, process.client, caches, process.now, _TERMS)
            caches.connect(process.control(controller, caches.models[kind]), caches.models[kind])


class Watchman:
    """Looks back at the servers of a model: once it was served, never fewer of them answer than are wanted."""

    def __init__(self, fewest: int) -> None:
        self._fewest = fewest

    async def close(self) -> None: ...

    def bill(self, world: World) -> Bill:
        ready: set[str] = set()
        is_served = False
        wrong = []
        for change in world.history.journal:
            if change.resource.kind in {kind.resource.kind for kind in KINDS}:
                is_leaving = change.gone or "deletionTimestamp" in change.after["metadata"]
                is_served = not is_leaving and bool(change.after.get("status", {}).get("revision"))
            elif change.resource == POD:
                uid, metadata = change.after["metadata"]["uid"], change.after["metadata"]
                answers = is_ready(change.after) and not change.gone and "deletionTimestamp" not in metadata
                (ready.add if answers else ready.discard)(uid)
            elif change.resource == SERVICE and _is_taken_over(change) and len(ready) < self._fewest:
                wrong.append(f"{change.after['metadata']['name']} leads to servers that do not answer yet")
            if is_served and len(ready) < self._fewest:
                wrong.append(f"only {len(ready)} servers answer after {change.verb} {change.after['metadata']['name']}")
        return Bill(wrong=wrong[:1])


def _is_taken_over(change: Change) -> bool:
    """Whether it led to other servers until now."""
    before, after = (each.get("spec", {}).get("selector", {}) for each in (change.before or {}, change.after))
    return bool(before) and Label.MODEL_UID in after and Label.MODEL_UID not in before


def deploy(deed: str = "good", version: str = "v1", **spec: Any) -> Step:
    """`deed` is what becomes of the model: see deployments.py."""
    wanted = {
        "modelURI": f"https://models.example.com/{deed}/model.onnx",
        "version": version,
        "runtime": "fastapi-pytorch",
        "resources": {"requests": {"cpu": "1"}},
        "autoscale": False,
        "minReplicas": SERVERS,
        **spec,
    }
    return _create(MODEL_DEPLOYMENT, wanted)


def download(deed: str = "good", **spec: Any) -> Step:
    """An MLModel."""
    wanted = {
        "modelURL": f"https://models.example.com/{deed}/model.tar.gz",
        "framework": "tensorflow",
        "storageSize": "1Gi",
        "replicas": SERVERS,
        "expose": True,
        **spec,
    }
    return _create(ML_MODEL, wanted)


def change(kind: CustomKind = MODEL_DEPLOYMENT, **spec: Any) -> Step:
    async def patch(api: Api) -> None:
        (await api.merge(kind.resource, NAME, {"spec": spec})).ok  # noqa: B018 (asserts)

    return patch


def update(deed: str = "good", version: str = "v2", **spec: Any) -> Step:
    return change(modelURI=f"https://models.example.com/{deed}/model.onnx", version=version, **spec)


def delete(resource: Resource, name: str = NAME) -> Step:
    async def remove(api: Api) -> None:
        (await api.delete(resource, name, {"propagationPolicy": "Background"})).ok  # noqa: B018 (asserts)

    return remove


def at_once(*steps: Step) -> Step:
    """One after the other, before anybody has come to rest."""

    async def do(api: Api) -> None:
        for step in steps:
            await step(api)

    return do


def when(resource: Resource, name: str, holds: Callable[[dict[str, Any]], bool]) -> Step:
    async def wait(api: Api) -> None:
        await api.until(resource, name, lambda found: bool(found) and holds(found))

    return wait


def forget() -> Step:
    """Somebody takes the label away that says what became of each revision."""

    async def patch(api: Api) -> None:
        for each in (await api.list(CONTROLLER_REVISION)).ok["items"]:
            label = {"metadata": {"labels": {Label.OUTCOME: None}}}
            (await api.merge(CONTROLLER_REVISION, each["metadata"]["name"], label)).ok  # noqa: B018 (asserts)

    return patch


def meddle(resource: Resource, name: str, spec: dict[str, Any]) -> Step:
    """Somebody changes what is not his."""

    async def patch(api: Api) -> None:
        (await api.merge(resource, name, {"spec": spec})).ok  # noqa: B018 (asserts)

    return patch


def left_behind() -> Step:
    """What an operator before us made of the model: a Deployment that nobody here plays, and its Service."""

    async def make(api: Api) -> None:
        model = (await api.get(MODEL_DEPLOYMENT.resource, NAME)).ok
        owners, chosen = owned_by(model, controller=True), {"model": NAME}
        template = {"metadata": {"labels": chosen}, "spec": {"containers": []}}
        servers = {
            "metadata": {"name": f"inference-{NAME}", "ownerReferences": owners, "labels": chosen},
            "spec": {"selector": {"matchLabels": chosen}, "template": template},
        }
        service = {
            "metadata": {"name": f"svc-{NAME}", "ownerReferences": owners},
            "spec": {"selector": chosen, "ports": [{"port": 80, "targetPort": 8000, "protocol": "TCP"}]},
        }
        for resource, manifest in ((DEPLOYMENT, servers), (SERVICE, service)):
            (await api.create(resource, manifest)).ok  # noqa: B018 (asserts)

    return make


def _create(kind: CustomKind, spec: dict[str, Any]) -> Step:
    async def apply(api: Api) -> None:
        (await api.create(kind.resource, {"metadata": {"name": NAME}, "spec": spec})).ok  # noqa: B018 (asserts)

    return apply


def _scenario(name: str, *steps: Step, fewest: int = SERVERS, is_race: bool = False) -> Scenario:
    return Scenario(
        name=name,
        resources=(*(kind.resource for kind in KINDS), REPLICA_SET),
        build=ServingOperator,
        steps=steps,
        residents=(PlainJobs, DeploymentController, Autoscaler, Binder, Hosts),
        outside=functools.partial(Watchman, fewest),
        volatile=VOLATILE,
        is_race=is_race,
    )


_MD, _ML = MODEL_DEPLOYMENT.resource, ML_MODEL.resource
_SCRIPT = {"validateScript": "validate.py"}
_downloading = when(JOB, f"validate-{NAME}", lambda _: True)
_rolling = when(DEPLOYMENT, NAME, lambda found: found.get("status", {}).get("updatedReplicas", 0) > 0)
_meddle = meddle(DEPLOYMENT, NAME, {"progressDeadlineSeconds": 7, "paused": True})
_distract = meddle(SERVICE, f"{NAME}-service", {"selector": {"app": "another"}})
_late = when(DEPLOYMENT, NAME, lambda found: found["status"]["conditions"][0]["status"] == "False")
_replacing = when(DEPLOYMENT, NAME, lambda found: found["status"].get("replicas", 0) > SERVERS)

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        _scenario("served", deploy()),
        _scenario("validated and served", deploy(**_SCRIPT)),
        _scenario("in the image", deploy(modelURI="file:///models/iris")),
        _scenario("updated", deploy(), update()),
        _scenario("download fails", deploy("missing")),
        _scenario("download fails, then corrected", deploy("missing"), update()),
        _scenario("download of an update fails", deploy(), update("missing")),
        _scenario("validation of an update fails, then corrected", deploy(**_SCRIPT), update("invalid"), update()),
        _scenario("download fails twice in a way that passes", deploy("away")),
        _scenario("node agents die again and again", deploy("lost")),
        _scenario("node agents die while an update is made", deploy(), update("lost")),
        _scenario("node agents die, and then the source is away", deploy("lost-and-away")),
        _scenario("MLModel, while node agents die", download("lost")),
        # One server: of several, the one is told that was heard of first.
        _scenario("servers crash", deploy("crash", minReplicas=1), fewest=1),
        _scenario("servers crash, then corrected", deploy("crash"), update()),
        _scenario("servers of an update crash", deploy(), update("crash")),
        _scenario("servers of an update crash, then corrected", deploy(), update("crash"), update("good", "v3")),
        _scenario("servers of an update crash, and it is taken back", deploy(), update("crash"), update("good", "v1")),
        _scenario("servers of an update never answer", deploy(), update("silent")),
        _scenario("back to a revision by its number", deploy(), update(), change(rollbackTo=1)),
        _scenario("back, and forth", deploy(), update(), change(rollbackTo=1), change(rollbackTo=None)),
        # Its servers were there before: what is still said of others is not said of them.
        _scenario(
            "back to a revision as soon as another is late",
            deploy(),
            update(),
            at_once(update("silent", "v3"), _late, change(rollbackTo=1)),
            is_race=True,
        ),
        _scenario("back to a revision that is not there", deploy(), change(rollbackTo=7)),
        _scenario("scaled by load", deploy(), change(autoscale=True)),
        _scenario("scaled by load, then not", deploy(), change(autoscale=True), change(autoscale=False)),
        _scenario("scaled by load and updated", deploy(autoscale=True), update()),
        _scenario("more servers, then fewer", deploy(), change(minReplicas=4), change(minReplicas=2)),
        _scenario("another mind while downloading", at_once(deploy(), _downloading, update()), is_race=True),
        _scenario(
            "another mind while rolling out",
            deploy(),
            at_once(update(), _replacing, update("good", "v3")),
            is_race=True,
        ),
        _scenario("deleted", deploy(), delete(_MD)),
        _scenario("deleted while downloading", at_once(deploy(), _downloading, delete(_MD)), is_race=True),
        _scenario("deleted while rolling out", at_once(deploy(), _rolling, delete(_MD)), is_race=True),
        _scenario("deleted, and served anew", deploy(), at_once(delete(_MD), deploy())),
        _scenario("a stranger deletes the download", at_once(deploy(), _downloading, delete(JOB, f"validate-{NAME}"))),
        _scenario("a stranger deletes a Service", deploy(), delete(SERVICE, f"{NAME}-service")),
        _scenario("a stranger changes the servers and a Service", deploy(), at_once(_meddle, _distract)),
        _scenario("a stranger deletes the servers", deploy(), delete(DEPLOYMENT), fewest=0),
        _scenario("a stranger takes away what became of a revision", deploy(), forget()),
        _scenario("taken over from another operator", at_once(deploy(), left_behind())),
        _scenario("MLModel", download()),
        _scenario("MLModel updated", download(), change(ML_MODEL, modelURL="https://models.example.com/good/2.tar.gz")),
        _scenario(
            "MLModel, whose update crashes",
            download(),
            change(ML_MODEL, modelURL="https://models.example.com/crash/2.tar.gz"),
        ),
        _scenario(
            "MLModel to none and back", download(), change(ML_MODEL, replicas=0), change(ML_MODEL, replicas=2), fewest=0
        ),
        _scenario(
            "MLModel, whose claim a stranger deletes",
            download(),
            delete(PERSISTENT_VOLUME_CLAIM, f"{NAME}-pvc"),
            fewest=0,
        ),
        _scenario("MLModel hidden", download(), change(ML_MODEL, expose=False)),
        _scenario("MLModel deleted", download(), delete(_ML)),
    )
}


@functools.cache
def reference(name: str) -> Outcome:
    return runner.reference(SCENARIOS[name])
