"""Plan for a pod at a cloud: its deadline, and at Modal ids and the address of its log, as annotations. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from skysail.base.names import Annotation
from skysail.claims.types import CloudInstance
from skysail.core.actions import PatchMetadata, Plan
from skysail.kinds.offload.plan.snapshot import CloudPodSnapshot
from skysail.kube.api.resources import POD

_LOG_URL = "https://modal.com/apps"


def plan(snapshot: CloudPodSnapshot) -> Plan:
    """Write the annotations of the newest launch if they differ. Without an instance the last values stay."""
    launched = [claim for claim in snapshot.claims if claim.status.instance_id]
    if not launched:
        return Plan()
    present = snapshot.object.metadata.annotations or {}
    newest = max(launched, key=lambda claim: claim.spec.launch)
    desired = {**(_modal(newest) if snapshot.is_at_modal else {}), **_deadline(newest, present)}
    missing = {name: value for name, value in desired.items() if present.get(name) != value}
    if not missing:
        return Plan()
    return Plan(actions=(PatchMetadata(resource=POD, object=snapshot.object, annotations=missing),))


def _modal(claim: CloudInstance) -> dict[str, str]:
    status = claim.status
    found = {Annotation.MODAL_FUNCTION_ID.value: status.instance_id}
    if status.app_id:
        found[Annotation.MODAL_APP_ID.value] = status.app_id
        found[Annotation.MODAL_LOG_URL.value] = f"{_LOG_URL}/{status.app_id}"
    if status.url:
        found[Annotation.MODAL_FUNCTION_URL.value] = status.url
    return found


def _deadline(claim: CloudInstance, present: Mapping[str, str]) -> dict[str, str]:
    """Return the deadline of an App or of a server of a model: before it, a new pod has to replace this one."""
    status = claim.status
    is_replaced = bool(status.url) or Annotation.PERIOD in present
    return {Annotation.DEADLINE.value: status.deadline_time} if is_replaced and status.deadline_time else {}
