"""Plan for a pod at Modal: ids, the address of its log and its deadline at Modal, as annotations. Pure."""

from __future__ import annotations

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
    desired = _annotations(max(launched, key=lambda claim: claim.spec.launch))
    missing = {name: value for name, value in desired.items() if present.get(name) != value}
    if not missing:
        return Plan()
    return Plan(actions=(PatchMetadata(resource=POD, object=snapshot.object, annotations=missing),))


def _annotations(claim: CloudInstance) -> dict[str, str]:
    status = claim.status
    found = {Annotation.MODAL_FUNCTION_ID.value: status.instance_id}
    if status.app_id:
        found[Annotation.MODAL_APP_ID.value] = status.app_id
        found[Annotation.MODAL_LOG_URL.value] = f"{_LOG_URL}/{status.app_id}"
    if status.url:
        found[Annotation.MODAL_FUNCTION_URL.value] = status.url
        if status.deadline_time:
            # Before it, a new pod has to take the App over.
            found[Annotation.DEADLINE.value] = status.deadline_time
    return found
