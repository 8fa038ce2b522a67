"""What an operator before us serves a model by. It goes on until servers of ours have its Services, and ends then."""

from __future__ import annotations

from skysail.base.names import Condition, Label, Reason
from skysail.kinds.serving.snapshot import Snapshot
from skysail.kube.api.objects import Object
from skysail.kube.api.rbac import Right
from skysail.kube.api.resources import DEPLOYMENT
from skysail.kube.client.client import Client
from skysail.kube.client.errors import NotFound

RIGHTS = (Right(DEPLOYMENT, ("delete",)),)

_INFERENCE = "inference"


async def find(client: Client, snapshot: Snapshot) -> Object | None:
    """Its Deployment; None where there is none, or where ours has followed it."""
    name = snapshot.serving.names.predecessor
    if not name or not _may_be_there(snapshot):
        return None
    try:
        found = await client.get(DEPLOYMENT, snapshot.object.metadata.namespace, name, Object)
    except NotFound:
        return None
    return found if _is_of(snapshot.object, found) else None


def _may_be_there(snapshot: Snapshot) -> bool:
    """Asked where Services or servers are about to change hands, until it is written down that they have."""
    status, deployment = snapshot.object.status, snapshot.deployment
    if not status.revision:
        return not snapshot.services or (deployment is not None and deployment.is_rolled_out)
    said = {row.type: row for row in status.conditions}
    moving, accepted = said.get(Condition.PROGRESSING), said.get(Condition.ACCEPTED)
    is_refused = accepted is not None and accepted.status == "False"
    return is_refused or (moving is not None and moving.reason == Reason.TAKING_OVER)


def _is_of(model: Object, deployment: Object) -> bool:
    """Whether it was made for this model: it is owned by it, or nobody's and has the labels that it was made with."""
    owner, labels = deployment.metadata.controller, deployment.metadata.labels or {}
    if owner is not None:
        return owner.uid == model.metadata.uid
    return (labels.get(Label.MODEL), labels.get(Label.TYPE)) == (model.metadata.name, _INFERENCE)
