"""Rows of `skysail get` without a name: trainings and models with phase and progress."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from skysail.claims.types import CloudInstance
from skysail.cli import text_table
from skysail.cli.diagnosis import main_condition
from skysail.cli.durations import since
from skysail.core import pod_pending
from skysail.kinds.serving.api.types import ML_MODEL, MODEL_DEPLOYMENT, MLModel, ModelDeployment
from skysail.kinds.training.api.training_job import TRAINING_JOB, TrainingJob
from skysail.kube.api.crd import CustomKind
from skysail.kube.api.resources import Resource
from skysail.kube.api.workloads import Pod
from skysail.kube.client.client import Client
from skysail.kube.client.errors import NotFound, NotServed

Group = Literal["all", "jobs", "models"]
GROUPS: dict[str, Group] = {
    **dict.fromkeys(("job", "jobs", "tj", "trainingjob", "trainingjobs"), "jobs"),
    **dict.fromkeys(("model", "models", "md", "mlm", "modeldeployments", "mlmodels"), "models"),
    "all": "all",
}
_KINDS: dict[Group, tuple[CustomKind, ...]] = {
    "jobs": (TRAINING_JOB,),
    "models": (MODEL_DEPLOYMENT, ML_MODEL),
    "all": (TRAINING_JOB, MODEL_DEPLOYMENT, ML_MODEL),
}
_MAX_MESSAGE = 80
_HEADER = ("KIND", "NAME", "PHASE", "PROGRESS", "COST", "AGE", "MESSAGE")
_QUIET = {"Running", "Succeeded", "Ready"}


class Row(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One object. `resource` is its name for kubectl, as kind.group/name."""

    kind: str
    namespace: str
    name: str
    resource: str
    phase: str
    progress: str
    cost: str
    message: str
    creation_timestamp: str


async def read(client: Client, group: Group, namespace: str) -> list[Row]:
    """Return the objects of these kinds; an empty namespace means all. A kind that the cluster lacks has none."""
    found: list[Row] = []
    for kind in _KINDS[group]:
        try:
            objects = await client.list_objects(kind.resource, namespace, {}, kind.struct)
        except (NotFound, NotServed):
            continue
        found += [row(kind.resource, each) for each in objects]
    return sorted(found, key=lambda each: (each.namespace, each.kind, each.name))


def row(resource: Resource, object_: Any) -> Row:
    progress, message = _state(object_)
    kind = f"{resource.kind.lower()}.{resource.group}" if resource.group else resource.kind.lower()
    status = getattr(object_, "status", None)
    return Row(
        kind=resource.kind,
        namespace=object_.metadata.namespace,
        name=object_.metadata.name,
        resource=f"{kind}/{object_.metadata.name}",
        phase=getattr(status, "phase", None) or getattr(status, "state", None) or "",
        progress=progress,
        cost=_cost(object_),
        message=message,
        creation_timestamp=object_.metadata.creation_timestamp or "",
    )


def _state(object_: Any) -> tuple[str, str]:
    """Return the progress and the message of an object."""
    if isinstance(object_, TrainingJob):
        return _training(object_)
    if isinstance(object_, ModelDeployment | MLModel):
        return _model(object_)
    if isinstance(object_, Pod):
        reason = pod_pending.pending_reason(object_, f"Pod {object_.metadata.name}")
        return "", "" if reason is None else reason.message
    conditions = getattr(getattr(object_, "status", None), "conditions", ())
    return "", next((condition.message for condition in conditions if condition.status == "False"), "")


def _cost(object_: Any) -> str:
    """Return the price and the cost at clouds; empty for what runs in the cluster."""
    status = getattr(object_, "status", None)
    cloud = status if isinstance(object_, CloudInstance) else getattr(status, "cloud", None)
    rate, total = getattr(cloud, "usd_per_hour", None), getattr(cloud, "usd_total", None)
    words = ("" if rate is None else f"{rate:g} USD/h", "" if total is None else f"{total:g} USD")
    return ", ".join(word for word in words if word)


def render(rows: list[Row], now: datetime, *, with_namespace: bool) -> list[str]:
    """Return the lines of the table. Messages of objects that run well are left out, and long ones are shortened."""
    header = ("NAMESPACE", *_HEADER) if with_namespace else _HEADER
    return text_table.render(header, [_cells(each, now, with_namespace=with_namespace) for each in rows])


def _cells(each: Row, now: datetime, *, with_namespace: bool) -> tuple[str, ...]:
    message = "" if each.phase in _QUIET else " ".join(each.message.split())
    short = message if len(message) <= _MAX_MESSAGE else message[:_MAX_MESSAGE].rpartition(" ")[0] + " …"
    age = since(each.creation_timestamp, now) if each.creation_timestamp else ""
    cells = (each.kind, each.name, each.phase or "-", each.progress or "-", each.cost or "-", age or "-", short)
    return (each.namespace, *cells) if with_namespace else cells


def _training(job: TrainingJob) -> tuple[str, str]:
    reported, condition = job.status.progress, main_condition(job)
    percent = "" if reported is None or reported.percent is None else f"{reported.percent}%"
    return percent, "" if condition is None else condition.message


def _model(model: ModelDeployment | MLModel) -> tuple[str, str]:
    status = model.status
    if status.phase not in _QUIET and status.download is not None and status.download.percent is not None:
        return f"{status.download.percent}%", status.message
    return f"{status.ready_replicas}/{status.replicas} ready", status.message
