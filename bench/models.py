"""The sixth part: ModelDeployments on nodes that only pretend, beside the same Deployments and Services alone.

The models are in their images, because nothing can be downloaded on such a node; all else is done as for any other.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from bench import pods
from bench.peers import kwok
from bench.table import Row, number
from bench.training_course import FLOOR, SKYSAIL, Course, Round
from bench.training_jobs import RUNS, Manifest, Shape
from skysail.base.names import Label
from skysail.base.settings import Settings
from skysail.kinds.serving.api.types import MODEL_DEPLOYMENT, ModelDeployment
from skysail.kinds.serving.children import manifests
from skysail.kinds.serving.spec import revisions
from skysail.kinds.serving.spec.config import ServingConfig, serving_config
from skysail.kinds.serving.spec.desired import desired_model
from skysail.kinds.serving.spec.revisions import Revision
from skysail.kube.api.objects import Key, Object
from skysail.kube.api.resources import DEPLOYMENT, SERVICE, Resource
from skysail.kube.client import kubeconfig
from skysail.kube.client.client import Client
from skysail.kube.client.http_transport import HttpTransport
from skysail.local.cluster.home import Home

_ORDER = (FLOOR, SKYSAIL, FLOOR, SKYSAIL)
_WARM_UP = 50
# Who pretends to be ready is so at once, and would only be waited for.
_SOAK_SECONDS = 0


class ModelFigures(msgspec.Struct, frozen=True, kw_only=True):
    models: int
    rounds: dict[str, list[Round]]


class _DeploymentStatus(msgspec.Struct, frozen=True, rename="camel"):
    available_replicas: int = 0


class _Deployment(Object, frozen=True):
    status: _DeploymentStatus = _DeploymentStatus()


def run(models: int, say: Callable[[str], None]) -> ModelFigures:
    say("building KWOK, where it is not in the cache")
    kwok.PROGRAM.binary()
    with pods.cluster(say, "--without-operator", "--audit") as home:
        return asyncio.run(_measure(home, models, say))


def columns(figures: ModelFigures) -> Sequence[str]:
    return tuple(figures.rounds)


def rows(figures: ModelFigures) -> list[Row]:
    rounds = figures.rounds.values()
    return [
        Row(f"{figures.models:,} models created to all pods running, s", [_median(each, "pods") for each in rounds]),
        Row("  to all statuses saying so, s", [_median(each, "statuses") for each in rounds]),
        Row("writes of all for a model", [_median(each, "all_writes") for each in rounds]),
    ]


def remarks(figures: ModelFigures) -> list[str]:
    last = figures.rounds[SKYSAIL][-1]
    assert last.used is not None, "only the floor has no operator"
    details = ", ".join(f"{what} {count:.2f}" for what, count in last.writes.items())
    ratio = _median(figures.rounds[SKYSAIL], "statuses") / _median(figures.rounds[FLOOR], "statuses")
    cost = (
        f"Skysail wrote {sum(last.writes.values()):.1f} times for a model ({details}), used {last.used.cpu:.1f} s of a "
        f"processor and at most {number(last.used.highest_memory)} MB."
    )
    return [f"All of Skysail's statuses were there after {ratio:.2f} times the time of bare Deployments.", cost]


async def _measure(home: Home, models: int, say: Callable[[str], None]) -> ModelFigures:
    transport = HttpTransport(kubeconfig.from_file(home.kubeconfig))
    client = Client(transport)
    course = Course(home, client, {FLOOR: _BARE, SKYSAIL: _MODEL}, {"SKYSAIL_MIN_READY_SECONDS": str(_SOAK_SECONDS)})
    rounds: dict[str, list[Round]] = {FLOOR: [], SKYSAIL: []}
    try:
        await kwok.start(home, client)
        say("a first round that does not count")
        await course.at_once(FLOOR, min(models, _WARM_UP))
        for name in _ORDER:
            say(f"{name}: {models:,} models at once")
            rounds[name].append(await course.at_once(name, models))
    finally:
        await transport.close()
    return ModelFigures(models=models, rounds=rounds)


def _model(key: Key) -> Manifest:
    resource = MODEL_DEPLOYMENT.resource
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": key.name, "namespace": key.namespace},
        "spec": {
            "modelURI": "file:///opt/model",
            "runtime": "fastapi-pytorch",
            "runtimeImage": "server:1",
            "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
            "autoscale": False,
            "version": "v1",
        },
    }


def _children(key: Key) -> list[tuple[Resource, Manifest]]:
    """What Skysail would make of the model, without it."""
    wanted = _model(key)
    wanted["metadata"]["uid"] = f"no-uid-{key.name}"
    model = desired_model(msgspec.convert(wanted, ModelDeployment), _terms())
    revision = Revision(number=1, hash=revisions.hash_of(model.want), want=model.want)
    doors = [(SERVICE, manifest) for manifest in manifests.services(model, model.want)]
    return [*doors, (DEPLOYMENT, manifests.deployment(model, revision, _terms()))]


def _terms() -> ServingConfig:
    return serving_config(Settings(min_ready_seconds=_SOAK_SECONDS))


def _says(model: Any) -> str:
    return RUNS if model.status.phase == "Ready" else ""


def _median(rounds: list[Round], what: str) -> float:
    return statistics.median([float(getattr(each, what)) for each in rounds])


_BARE = Shape(
    resource=DEPLOYMENT,
    type=_Deployment,
    label=Label.MODEL,
    manifests=_children,
    says=lambda deployment: RUNS if deployment.status.available_replicas == 1 else "",
    pods=1,
)
_MODEL = Shape(
    resource=MODEL_DEPLOYMENT.resource,
    type=ModelDeployment,
    label=Label.MODEL,
    manifests=lambda key: [(MODEL_DEPLOYMENT.resource, _model(key))],
    says=_says,
    pods=1,
)
