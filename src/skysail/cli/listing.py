"""Rows of `skysail get` without a name: trainings, models and endpoints with phase, progress and cost."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from skysail.claims.types import CLOUD_INSTANCE, CloudInstance
from skysail.cli import cluster, text_table
from skysail.cli.diagnosis import main_condition
from skysail.cli.durations import since
from skysail.core import pod_pending
from skysail.kinds.modal_endpoints.types import MODAL_ENDPOINT, MODAL_FUNCTION
from skysail.kinds.serving.api.types import ML_MODEL, MODEL_DEPLOYMENT, MLModel, ModelDeployment
from skysail.kinds.training.api.modal_job import MODAL_JOB
from skysail.kinds.training.api.train_job import TRAIN_JOB
from skysail.kinds.training.api.training_job import TRAINING_JOB, TrainingJob
from skysail.kube.api.crd import CustomKind
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import Resource
from skysail.kube.api.workloads import Pod
from skysail.kube.client.client import Client
from skysail.kube.client.errors import UNREADABLE, Forbidden, NotFound, NotServed, ServerFault

Group = tuple[CustomKind, ...]
_JOBS: Group = (TRAINING_JOB, MODAL_JOB, TRAIN_JOB)
_MODELS: Group = (MODEL_DEPLOYMENT, ML_MODEL)
_ENDPOINTS: Group = (MODAL_ENDPOINT, MODAL_FUNCTION)
GROUPS: dict[str, Group] = {
    **{name: (kind,) for kind in (*_JOBS, *_MODELS, *_ENDPOINTS, CLOUD_INSTANCE) for name in cluster.spellings(kind)},
    **dict.fromkeys(("job", "jobs"), _JOBS),
    **dict.fromkeys(("model", "models"), _MODELS),
    **dict.fromkeys(("endpoint", "endpoints"), _ENDPOINTS),
    **dict.fromkeys(("function", "functions"), (MODAL_FUNCTION,)),
    "all": (*_JOBS, *_MODELS, *_ENDPOINTS),
}
_TRANSLATED = (MODAL_JOB, TRAIN_JOB)
# Kinds that many clusters have no use for: a user without the right to list them sees the others.
_OPTIONAL = (*_TRANSLATED, *_ENDPOINTS)
_MAX_MESSAGE = 80
_HEADER = ("KIND", "NAME", "PHASE", "PROGRESS", "COST", "AGE", "MESSAGE")
_QUIET = {"Running", "Succeeded", "Ready", "Deployed"}


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
    """Return the objects of these kinds; an empty namespace means all. A kind that the cluster lacks has none.

    A ModalJob or TrainJob and the TrainingJob that runs it are one row.
    """
    found = [(kind, each) for kind in group for each in await _list(client, kind, namespace, group)]
    uids = {each.metadata.uid for _, each in found}
    needs_trainings = any(kind in _TRANSLATED for kind, _ in found)
    all_trainings = await _list(client, TRAINING_JOB, namespace, group) if needs_trainings else []
    trainings = {
        owner.uid: each
        for each in all_trainings
        if (owner := each.metadata.controller) is not None and owner.uid in uids
    }
    hidden = {each.metadata.uid for each in trainings.values()}
    rows = [
        row(kind.resource, each, trainings.get(each.metadata.uid))
        for kind, each in found
        if each.metadata.uid not in hidden
    ]
    return sorted(rows, key=lambda each: (each.namespace, each.kind, each.name))


async def _list(client: Client, kind: CustomKind, namespace: str, group: Group) -> list[Any]:
    place = namespace if kind.resource.namespaced else ""
    try:
        found: Sequence[Any] = await client.list_objects(kind.resource, place, {}, kind.struct)
    except (NotFound, NotServed):
        return []
    except Forbidden:
        if kind in _OPTIONAL and len(group) > 1:
            return []
        raise
    except ServerFault as error:
        if kind not in _OPTIONAL or error.reason != UNREADABLE:
            raise
        # Kubeflow Trainer accepts TrainJobs that our type does not: their names are known, and no phase is.
        found = await client.list_objects(kind.resource, place, {}, Object)
    return [each for each in found if namespace in {"", _namespace(each)}]


def _namespace(object_: Any) -> str:
    """Return the namespace of an object, or of the object that a claim runs for."""
    found: str = object_.spec.owner.namespace if isinstance(object_, CloudInstance) else object_.metadata.namespace
    return found


def row(resource: Resource, object_: Any, training: TrainingJob | None = None) -> Row:
    """Return the row of an object. `training`: the TrainingJob that runs it, if there is one."""
    progress, message = _state(training or object_)
    kind = f"{resource.kind.lower()}.{resource.group}" if resource.group else resource.kind.lower()
    status = getattr(object_, "status", None)
    return Row(
        kind=resource.kind,
        namespace=_namespace(object_),
        name=object_.metadata.name,
        resource=f"{kind}/{object_.metadata.name}",
        phase=_phase(status) or ("" if training is None else training.status.phase or ""),
        progress=progress,
        cost=_cost(training or object_),
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


def _phase(status: Any) -> str:
    return getattr(status, "phase", None) or getattr(status, "state", None) or ""


def _cost(object_: Any) -> str:
    """Return the price and the cost at clouds; empty for what runs in the cluster."""
    status = getattr(object_, "status", None)
    cloud = status if isinstance(object_, CloudInstance) else getattr(status, "cloud", None)
    rate, total = getattr(cloud, "usd_per_hour", None), getattr(cloud, "usd_total", None)
    words = ("" if rate is None else f"{_usd(rate)} USD/h", "" if total is None else f"{_usd(total)} USD")
    return ", ".join(word for word in words if word)


def _usd(amount: float) -> str:
    """Return an amount without an exponent, to a millionth of a dollar as claims store it."""
    return f"{amount:.6f}".rstrip("0").rstrip(".")


def render(rows: list[Row], now: datetime, *, with_namespace: bool, for_terminal: bool = False) -> list[str]:
    """Return the lines of the table. Messages of objects that run well are left out.

    Long messages are shortened for a terminal only: in a pipe, programs read them.
    """
    header = ("NAMESPACE", *_HEADER) if with_namespace else _HEADER
    limit = _MAX_MESSAGE if for_terminal else None
    return text_table.render(header, [_cells(each, now, with_namespace=with_namespace, limit=limit) for each in rows])


def _cells(each: Row, now: datetime, *, with_namespace: bool, limit: int | None) -> tuple[str, ...]:
    message = "" if each.phase in _QUIET else " ".join(each.message.split())
    short = message if limit is None or len(message) <= limit else message[:limit].rpartition(" ")[0] + " …"
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
