"""Find the object of any kind that `skysail why`, `get` and `logs` are asked about."""

from __future__ import annotations

from typing import Any, NamedTuple

from skysail.app.kinds import ALL_KINDS, COMPATIBLE_KINDS
from skysail.claims.types import CLOUD_INSTANCE, CloudInstance
from skysail.cli import cluster
from skysail.cli.cluster import Ambiguous, ObjectNotFound
from skysail.kinds.serving.api.types import ML_MODEL, MODEL_DEPLOYMENT
from skysail.kinds.training.api.training_job import TRAINING_JOB
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import POD, Resource
from skysail.kube.api.workloads import Pod
from skysail.kube.client.client import Client
from skysail.kube.client.errors import Forbidden, NotServed

_MAIN = (TRAINING_JOB, MODEL_DEPLOYMENT, ML_MODEL)
_OTHERS = tuple(kind for kind in (*ALL_KINDS, *COMPATIBLE_KINDS) if kind not in (*_MAIN, CLOUD_INSTANCE))
# Spellings, resource, type. Pods and claims are last: their names are made from those of other objects. Other kinds are
# before them, because a ModalJob becomes a TrainingJob of the same name.
_KINDS: tuple[tuple[tuple[str, ...], Resource, Any], ...] = (
    *(
        ((kind.resource.kind.lower(), kind.resource.plural, *kind.short_names), kind.resource, kind.struct)
        for kind in (*_MAIN, *_OTHERS)
    ),
    (("pod", "pods", "po"), POD, Pod),
    (("cloudinstance", "cloudinstances", "ci", "claim", "claims"), CLOUD_INSTANCE.resource, CloudInstance),
)
_PRIMARY = {kind.resource.kind for kind in _MAIN}


class Found(NamedTuple):
    """An object and its kind."""

    resource: Resource
    object: Any


async def find(client: Client, namespace: str, desired: str) -> Found:
    """Return the object by `kind/name` or by its name. Raises ObjectNotFound or Ambiguous."""
    kind, slash, name = desired.rpartition("/")
    kinds = [row for row in _KINDS if not slash or kind.lower() in row[0]]
    if not kinds:
        known = ", ".join(row[0][0] for row in _KINDS)
        raise ObjectNotFound(f"{kind} is not a kind that can be explained. Write one of {known}, a slash and the name.")
    found = [Found(row[1], each) for row in kinds if (each := await _get(client, row, namespace, name)) is not None]
    main = [each for each in found if each.resource.kind in _PRIMARY]
    if len(main) > 1:
        named = " or ".join(f"{each.resource.kind.lower()}/{name}" for each in main)
        raise Ambiguous(f"Namespace {namespace} has several objects {name}. Write {named}.")
    if found:
        return found[0]
    if slash and len(kinds) == 1 and kinds[0][1] is not TRAINING_JOB.resource:
        raise ObjectNotFound(f"{kinds[0][1].kind} {name} not found in namespace {namespace}.")
    return Found(TRAINING_JOB.resource, await cluster.training_job(client, namespace, name))


async def _get(client: Client, row: tuple[tuple[str, ...], Resource, Any], namespace: str, name: str) -> Object | None:
    _, resource, type_ = row
    try:
        found: Object | None = await client.find(resource, namespace if resource.namespaced else "", name, type_)
    except NotServed:
        return None
    except Forbidden:
        if resource is TRAINING_JOB.resource:
            raise
        return None
    return found
