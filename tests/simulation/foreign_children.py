"""Children that a tenant makes in one namespace for an object of another: an owner reference, and labels, with its UID.

The reference names a kind that no garbage collector can look up, so that the child stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from skysail.base.names import Label
from skysail.kinds.training.api.training_job import TRAINING_JOB
from skysail.kube.api.resources import DEPLOYMENT, JOB, NAMESPACE, POD
from tests.contract.api_dsl import Api

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from skysail.kube.api.resources import Resource

    Step = Callable[[Api], Awaitable[None]]

Object = dict[str, Any]

ELSEWHERE = "elsewhere"
_LATER_ATTEMPT = "7"
_KEPT = ("spec", "data", "revision")


def nothing_elsewhere() -> Step:
    """The namespace of the tenant, without any child: what every other run is compared with."""

    async def make(api: Api) -> None:
        (await api.create(NAMESPACE, {"metadata": {"name": ELSEWHERE}})).ok  # noqa: B018 (asserts)

    return make


def foreign_children(root: Resource, name: str, resource: Resource) -> Step:
    """Copy every child of this resource to another namespace, as failed, and once more as of a later attempt.

    Where the root has no such child, one is made of nothing but metadata.
    """

    async def make(api: Api) -> None:
        await nothing_elsewhere()(api)
        uid = (await api.get(root, name)).ok["metadata"]["uid"]
        tenant = Api(api.transport, ELSEWHERE, api.compact)
        originals = (await api.list(resource)).ok["items"] or [{"metadata": {"name": f"{name}-child"}}]
        for original in originals:
            await _create(tenant, resource, _copy(original, uid))
        await _create(tenant, resource, _later(_copy(originals[0], uid)))

    return make


def _copy(original: Object, uid: str) -> Object:
    metadata = original["metadata"]
    owner = {"apiVersion": "example.com/v1", "kind": "Unknown", "name": "x", "uid": uid, "controller": True}
    labels = {**metadata.get("labels", {}), Label.TRAINING_JOB_UID: uid, Label.MODEL_UID: uid}
    copied = {"name": metadata["name"], "labels": labels, "annotations": metadata.get("annotations", {})}
    return {
        "metadata": {**copied, "ownerReferences": [owner]},
        **{key: original[key] for key in _KEPT & original.keys()},
    }


def _later(child: Object) -> Object:
    metadata = child["metadata"]
    labels = {**metadata["labels"], Label.ATTEMPT: _LATER_ATTEMPT}
    return {**child, "metadata": {**metadata, "name": f"{metadata['name']}-{_LATER_ATTEMPT}", "labels": labels}}


async def _create(tenant: Api, resource: Resource, child: Object) -> None:
    """As ended, where that can be told: controllers of the cluster leave it alone then, and ours must as well."""
    if resource == DEPLOYMENT:
        child = {**child, "spec": {**child.get("spec", {}), "replicas": 0}}
    if resource == TRAINING_JOB.resource:
        # Otherwise the training engine would run it for the tenant, as it should.
        child = {**child, "spec": {**child["spec"], "managedBy": "example.com/another"}}
    (await tenant.create(resource, child)).ok  # noqa: B018 (asserts)
    status = _failed(resource)
    if status:
        name = child["metadata"]["name"]
        (await tenant.merge(resource, name, {"status": status}, "status")).ok  # noqa: B018 (asserts)


def _failed(resource: Resource) -> Object:
    if resource == JOB:
        row = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "It failed."}
        return {"conditions": [row], "failed": 1}
    return {"phase": "Failed", "reason": "Error"} if resource == POD else {}
