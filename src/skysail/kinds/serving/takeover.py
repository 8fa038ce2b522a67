"""Take-over from the previous operator: its Deployment serves until the Services select our servers."""

from __future__ import annotations

from skysail.base.names import Condition, Label, Reason
from skysail.kinds.serving.snapshot import Snapshot
from skysail.kube.api.objects import Object
from skysail.kube.api.rbac import PolicyRule
from skysail.kube.api.resources import DEPLOYMENT
from skysail.kube.client.client import Client

POLICY_RULES = (PolicyRule(DEPLOYMENT, ("delete",)),)

_INFERENCE = "inference"


async def find_legacy_deployment(client: Client, snapshot: Snapshot) -> Object | None:
    """Return the Deployment of the previous operator, or None if there is none or ours has replaced it."""
    name = snapshot.serving.names.predecessor
    if not name or not _may_exist(snapshot):
        return None
    found = await client.find(DEPLOYMENT, snapshot.object.metadata.namespace, name, Object)
    return found if found is not None and _belongs_to(snapshot.object, found) else None


def _may_exist(snapshot: Snapshot) -> bool:
    """Look for a legacy Deployment only until the status records that the take-over is complete."""
    status, deployment = snapshot.object.status, snapshot.deployment
    if not status.revision:
        return not snapshot.services or (deployment is not None and deployment.is_rolled_out)
    reported = {condition.type: condition for condition in status.conditions}
    moving, accepted = reported.get(Condition.PROGRESSING), reported.get(Condition.ACCEPTED)
    is_refused = accepted is not None and accepted.status == "False"
    return is_refused or (moving is not None and moving.reason == Reason.ADOPTING)


def _belongs_to(model: Object, deployment: Object) -> bool:
    """Return whether the Deployment belongs to this model: by owner, or without an owner by its legacy labels."""
    owner, labels = deployment.metadata.controller, deployment.metadata.labels or {}
    if owner is not None:
        return owner.uid == model.metadata.uid
    return (labels.get(Label.MODEL), labels.get(Label.TYPE)) == (model.metadata.name, _INFERENCE)
