"""Table of the models of a cluster, each with a sparkline of its requests in the last minutes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Annotated

import msgspec
from rich.table import Column, Table
from rich.text import Text

from skysail.base import untrusted_json
from skysail.base.names import Label
from skysail.cli.cluster import Model
from skysail.kinds.serving.api.types import ML_MODEL, MODEL_DEPLOYMENT, MLModel, ModelDeployment
from skysail.kinds.serving.spec import revisions
from skysail.kinds.serving.spec.revisions import ControllerRevision
from skysail.kinds.serving.spec.runtimes import RUNTIMES, ServingRuntime
from skysail.kube.api.objects import IndexKey, Object
from skysail.kube.api.resources import CONTROLLER_REVISION, POD
from skysail.kube.client.client import Client
from skysail.kube.client.errors import KubeError

_BARS = " ▁▂▃▄▅▆▇█"
_WIDTH = 20
_SECONDS = 3.0
_OK = 200
_MAX_CONCURRENT = 16
_SERVERS = f"{Label.MODEL_UID},{Label.TYPE}=inference"


class ModelRow(msgspec.Struct, frozen=True):
    """A model and its requests per interval, oldest first. None if its servers do not report requests."""

    model: Model
    requests: list[int] | None


class _Stats(msgspec.Struct):
    """Statistics from a server in a user's pod. Untrusted."""

    requests: Annotated[list[Annotated[int, msgspec.Meta(ge=0, le=10**12)]], msgspec.Meta(max_length=600)]


async def read(client: Client) -> list[ModelRow]:
    deployments = await client.list_objects(MODEL_DEPLOYMENT.resource, "", {}, ModelDeployment)
    others = await client.list_objects(ML_MODEL.resource, "", {}, MLModel)
    models: list[Model] = sorted((*deployments, *others), key=lambda model: model.metadata.key)
    pods = await client.list_objects(POD, "", {"labelSelector": _SERVERS}, Object)
    query = {"labelSelector": Label.MODEL_UID}
    servers = _servers_with_stats(pods, await client.list_objects(CONTROLLER_REVISION, "", query, ControllerRevision))
    turns = asyncio.Semaphore(_MAX_CONCURRENT)
    asked = await asyncio.gather(*(_requests(client, model, servers, turns) for model in models))
    return [ModelRow(model, requests) for model, requests in zip(models, asked, strict=True)]


def table(rows: Iterable[ModelRow]) -> Table:
    requests = Column("requests, last 10 min", no_wrap=True, min_width=_WIDTH)
    drawn = Table(
        Column("model", overflow="fold"), Column("version", overflow="fold"), "phase", "revision", "ready", requests
    )
    for model_row in rows:
        model, status = model_row.model, model_row.model.status
        drawn.add_row(
            str(model.metadata.key),
            Text(model.status.version) if isinstance(model, ModelDeployment) else "",
            status.phase or "not seen yet",
            str(status.revision or ""),
            f"{status.ready_replicas}/{status.replicas}",
            "" if model_row.requests is None else f"{sparkline(model_row.requests)} {sum(model_row.requests)}",
        )
    return drawn


def sparkline(counts: list[int]) -> str:
    """Draw the counts, scaled to the maximum. Several counts share a character if there are too many."""
    size = max(1, -(-len(counts) // _WIDTH))
    sums = [sum(counts[start : start + size]) for start in range(0, len(counts), size)]
    tallest = max(sums, default=0) or 1
    return "".join(_BARS[-(-count * (len(_BARS) - 1) // tallest)] for count in sums)


def _servers_with_stats(
    pods: Iterable[Object], stored: Iterable[ControllerRevision]
) -> list[tuple[Object, ServingRuntime]]:
    """The servers that tell how often they were asked, each asked as its own revision wants it.

    The spec asks for another runtime after an update that failed, and during one servers of both are there.
    """
    entries = [
        (controller_revision, revision)
        for controller_revision in stored
        if (revision := revisions.from_object(controller_revision)) is not None
    ]
    runtimes = {
        (_model(controller_revision), revision.hash): RUNTIMES[revision.want.runtime]
        for controller_revision, revision in entries
    }
    found = [(pod, runtimes.get((_model(pod), (pod.metadata.labels or {}).get(Label.REVISION, "")))) for pod in pods]
    return [(pod, runtime) for pod, runtime in found if runtime is not None and runtime.stats]


def _model(child: Object) -> IndexKey:
    """Return namespace and UID of the model that a label names: servers are in the namespace of their model."""
    return IndexKey(child.metadata.namespace, (child.metadata.labels or {}).get(Label.MODEL_UID, ""))


async def _requests(
    client: Client, model: Model, servers: list[tuple[Object, ServingRuntime]], turns: asyncio.Semaphore
) -> list[int] | None:
    """Add up all servers of a model. A server that does not answer in time is skipped."""
    own = [(pod, runtime) for pod, runtime in servers if _model(pod) == model.metadata.identity]
    per_server = [
        stats for stats in await asyncio.gather(*(_stats(client, pod, runtime, turns) for pod, runtime in own)) if stats
    ]
    return [sum(counts) for counts in zip(*per_server, strict=False)] if per_server else None


async def _stats(client: Client, pod: Object, runtime: ServingRuntime, turns: asyncio.Semaphore) -> list[int]:
    path = POD.path(pod.metadata.namespace, f"{pod.metadata.name}:{runtime.port}", "proxy")
    try:
        async with turns, asyncio.timeout(_SECONDS):
            reply = await client.proxy(f"{path}{runtime.stats}")
        return untrusted_json.decode(reply.body, _Stats).requests if reply.status == _OK else []
    except (KubeError, TimeoutError, untrusted_json.InvalidJson):
        return []
