"""Find the object of any kind that `skysail why`, `get` and `logs` are asked about."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from skysail.app.kinds import ALL_KINDS, COMPATIBLE_KINDS
from skysail.claims.types import CLOUD_INSTANCE, CloudInstance
from skysail.cli import cluster
from skysail.cli.cluster import Ambiguous, ObjectNotFound
from skysail.kinds.serving.api.types import ML_MODEL, MODEL_DEPLOYMENT
from skysail.kinds.training.api.modal_job import MODAL_JOB
from skysail.kinds.training.api.train_job import TRAIN_JOB
from skysail.kinds.training.api.training_job import TRAINING_JOB, TrainingJob
from skysail.kinds.training.children import modal_job, train_job
from skysail.kube.api.fields import Condition
from skysail.kube.api.objects import Key, Object
from skysail.kube.api.resources import JOB, POD, Resource
from skysail.kube.api.workloads import Job, Pod
from skysail.kube.client.client import Client
from skysail.kube.client.errors import UNREADABLE, Forbidden, NotServed, ServerFault

_Kind = tuple[tuple[str, ...], Resource, Any]

_MAIN = (TRAINING_JOB, MODEL_DEPLOYMENT, ML_MODEL)
_OTHERS = tuple(kind for kind in (*ALL_KINDS, *COMPATIBLE_KINDS) if kind not in (*_MAIN, CLOUD_INSTANCE))
# Kinds that a TrainingJob runs, with the name of that TrainingJob.
_CHILD_NAMES = {MODAL_JOB.resource: modal_job.child_name, TRAIN_JOB.resource: train_job.child_name}
# Spellings, resource, type. Jobs, pods and claims are last: their names are made from those of other objects.
_KINDS: tuple[_Kind, ...] = (
    *((cluster.spellings(kind), kind.resource, kind.struct) for kind in (*_MAIN, *_OTHERS)),
    (("job", "jobs"), JOB, Job),
    (("pod", "pods", "po"), POD, Pod),
    (cluster.spellings(CLOUD_INSTANCE), CLOUD_INSTANCE.resource, CloudInstance),
)
_COMPATIBLE = {kind.resource for kind in COMPATIBLE_KINDS}
_PRIMARY = {kind.resource.kind for kind in _MAIN}


class _PartlyReadStatus(msgspec.Struct, frozen=True):
    conditions: tuple[Condition, ...] = ()


class PartlyRead(Object, frozen=True):
    """Object of another project's kind that our type does not fit: its name and conditions are known."""

    status: _PartlyReadStatus = _PartlyReadStatus()


class Found(NamedTuple):
    """An object and its kind. `training`: the TrainingJob that runs a ModalJob or TrainJob, once it exists."""

    resource: Resource
    object: Any
    training: TrainingJob | None = None


async def find(client: Client, namespace: str, desired: str) -> Found:
    """Return the object by `kind/name` or by its name. Raises ObjectNotFound, Ambiguous or NameMissing."""
    kind, slash, name = desired.rpartition("/")
    cluster.check_name(name)
    kinds = [row for row in _KINDS if not slash or kind.lower() in row[0]]
    if not kinds:
        known = ", ".join(row[0][0] for row in _KINDS)
        raise ObjectNotFound(f"{kind} is not a kind that can be explained. Write one of {known}, a slash and the name.")
    found = [Found(row[1], each) for row in kinds if (each := await _get(client, row, namespace, name)) is not None]
    main = [each for each in found if each.resource.kind in _PRIMARY]
    if len(main) > 1:
        named = " or ".join(f"{each.resource.kind.lower()}/{name}" for each in main)
        raise Ambiguous(f"Namespace {namespace} has several objects {name}. Write {named}.")
    if not found:
        raise await cluster.not_found(client, [row[1] for row in kinds], Key(namespace, name))
    return found[0]._replace(training=await _training(client, found[0]))


def is_run_by(training: TrainingJob, object_: Object) -> bool:
    """Return whether the TrainingJob was made for this ModalJob or TrainJob."""
    return training.metadata.is_controlled_by(object_.metadata)


def child_name(resource: Resource, name: str) -> str | None:
    """Return the name of the TrainingJob that runs an object of this kind. Returns None for other kinds."""
    name_of = _CHILD_NAMES.get(resource)
    return None if name_of is None else name_of(name)


async def _training(client: Client, found: Found) -> TrainingJob | None:
    metadata = found.object.metadata
    child = child_name(found.resource, metadata.name)
    if child is None:
        return None
    training = await client.find(TRAINING_JOB.resource, metadata.namespace, child, TrainingJob)
    return training if training is not None and is_run_by(training, found.object) else None


async def _get(client: Client, row: _Kind, namespace: str, name: str) -> Object | None:
    _, resource, type_ = row
    try:
        found: Object | None = await client.find(resource, namespace if resource.namespaced else "", name, type_)
    except NotServed:
        return None
    except Forbidden:
        if resource is TRAINING_JOB.resource:
            raise
        return None
    except ServerFault as error:
        if resource not in _COMPATIBLE or error.reason != UNREADABLE:
            raise
        # Kubeflow Trainer accepts TrainJobs that our type does not.
        return await client.find(resource, namespace, name, PartlyRead)
    return found
