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
from skysail.kinds.serving.spec.runtimes import ROWS, Row
from skysail.kube.api.objects import IndexKey, Object
from skysail.kube.api.resources import CONTROLLER_REVISION, POD
from skysail.kube.client.client import Client, decoded
from skysail.kube.client.errors import KubeError

_BARS = " ▁▂▃▄▅▆▇█"
_WIDTH = 20
_SECONDS = 3.0
_OK = 200
_AT_ONCE = 16
_SERVERS = f"{Label.MODEL_UID},{Label.TYPE}=inference"


class Shown(msgspec.Struct, frozen=True):
    """A model and its requests per interval, oldest first. None if its servers do not report requests."""

    model: Model
    requests: list[int] | None


class _Stats(msgspec.Struct):
    """Statistics from a server in a user's pod. Untrusted."""

    requests: Annotated[list[Annotated[int, msgspec.Meta(ge=0, le=10**12)]], msgspec.Meta(max_length=600)]


class _Models(msgspec.Struct):
    items: tuple[ModelDeployment, ...]


class _MLModels(msgspec.Struct):
    items: tuple[MLModel, ...]


class _Pods(msgspec.Struct):
    items: tuple[Object, ...]


class _Revisions(msgspec.Struct):
    items: tuple[ControllerRevision, ...]


async def read(client: Client) -> list[Shown]:
    deployments = decoded(await client.list_page(MODEL_DEPLOYMENT.resource, "", {}), _Models).items
    others = decoded(await client.list_page(ML_MODEL.resource, "", {}), _MLModels).items
    models: list[Model] = sorted((*deployments, *others), key=lambda model: model.metadata.key)
    pods = decoded(await client.list_page(POD, "", {"labelSelector": _SERVERS}), _Pods).items
    stored = decoded(await client.list_page(CONTROLLER_REVISION, "", {"labelSelector": Label.MODEL_UID}), _Revisions)
    servers = _telling(pods, stored.items)
    turns = asyncio.Semaphore(_AT_ONCE)
    asked = await asyncio.gather(*(_requests(client, model, servers, turns) for model in models))
    return [Shown(model, requests) for model, requests in zip(models, asked, strict=True)]


def table(shown: Iterable[Shown]) -> Table:
    requests = Column("requests, last 10 min", no_wrap=True, min_width=_WIDTH)
    drawn = Table(Column("model", overflow="fold"), "version", "phase", "revision", "ready", requests)
    for each in shown:
        model, status = each.model, each.model.status
        drawn.add_row(
            str(model.metadata.key),
            Text(model.status.version) if isinstance(model, ModelDeployment) else "",
            status.phase or "not seen yet",
            str(status.revision or ""),
            f"{status.ready_replicas}/{status.replicas}",
            "" if each.requests is None else f"{sparkline(each.requests)} {sum(each.requests)}",
        )
    return drawn


def sparkline(counts: list[int]) -> str:
    """Draw the counts, scaled to the maximum. Several counts share a character if there are too many."""
    size = max(1, -(-len(counts) // _WIDTH))
    sums = [sum(counts[start : start + size]) for start in range(0, len(counts), size)]
    tallest = max(sums, default=0) or 1
    return "".join(_BARS[-(-count * (len(_BARS) - 1) // tallest)] for count in sums)


def _telling(pods: Iterable[Object], stored: Iterable[ControllerRevision]) -> list[tuple[Object, Row]]:
    """The servers that tell how often they were asked, each asked as its own revision wants it.

    The spec asks for another runtime after an update that failed, and during one servers of both are there.
    """
    entries = [(each, entry) for each in stored if (entry := revisions.entry(each)) is not None]
    rows = {(_model(each), entry.hash): ROWS[entry.want.runtime] for each, entry in entries}
    found = [(pod, rows.get((_model(pod), (pod.metadata.labels or {}).get(Label.REVISION, "")))) for pod in pods]
    return [(pod, row) for pod, row in found if row is not None and row.stats]


def _model(child: Object) -> IndexKey:
    """Return namespace and UID of the model that a label names: servers are in the namespace of their model."""
    return IndexKey(child.metadata.namespace, (child.metadata.labels or {}).get(Label.MODEL_UID, ""))


async def _requests(
    client: Client, model: Model, servers: list[tuple[Object, Row]], turns: asyncio.Semaphore
) -> list[int] | None:
    """Add up all servers of a model. A server that does not answer in time is skipped."""
    own = [(pod, row) for pod, row in servers if _model(pod) == model.metadata.identity]
    told = [stats for stats in await asyncio.gather(*(_stats(client, pod, row, turns) for pod, row in own)) if stats]
    return [sum(counts) for counts in zip(*told, strict=False)] if told else None


async def _stats(client: Client, pod: Object, row: Row, turns: asyncio.Semaphore) -> list[int]:
    path = POD.path(pod.metadata.namespace, f"{pod.metadata.name}:{row.port}", "proxy")
    try:
        async with turns, asyncio.timeout(_SECONDS):
            reply = await client.ask(f"{path}{row.stats}")
        return untrusted_json.read(reply.body, _Stats).requests if reply.status == _OK else []
    except (KubeError, TimeoutError, untrusted_json.Unreadable):
        return []
