"""Plan for a Job with pods at RunPod: ids and prices of its instances, as annotations of the Job. Pure."""

from __future__ import annotations

from skysail.base.names import Annotation
from skysail.core.actions import PatchMetadata, Plan
from skysail.kinds.offload.plan.snapshot import JobSnapshot
from skysail.kube.api.resources import JOB


def plan(snapshot: JobSnapshot) -> Plan:
    """Write the annotations if they differ. Without a live claim the last values stay."""
    present = snapshot.object.annotations
    missing = {name: value for name, value in _annotations(snapshot).items() if present.get(name) != value}
    if not missing:
        return Plan()
    return Plan(actions=(PatchMetadata(resource=JOB, object=snapshot.object, annotations=missing),))


def _annotations(snapshot: JobSnapshot) -> dict[str, str]:
    if not snapshot.claims:
        return {}
    launched = [claim for claim in snapshot.claims if claim.status.instance_id]
    found = {Annotation.RUNPOD_OFFLOADED.value: "true"}
    if launched:
        found[Annotation.RUNPOD_POD_ID.value] = ",".join(claim.status.instance_id for claim in launched)
    priced = [claim.status.usd_per_hour for claim in launched if claim.status.usd_per_hour is not None]
    if launched and len(priced) == len(launched):
        found[Annotation.RUNPOD_COST.value] = ",".join(f"{price:f}" for price in priced)
    return found
