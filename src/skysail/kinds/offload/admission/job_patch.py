"""Patch of a Job or CronJob at its creation. Pure.

Annotations of a Job are not on its pods, so those that ask for a cloud are copied into the pod template. A Job whose
pods may have to change the provider gets a pod failure policy, so that a disruption costs no retry.
"""

from __future__ import annotations

from typing import Any

from skysail.claims.requirements import annotations as requirements
from skysail.claims.requirements.types import OwnerLink, PodSpecView
from skysail.kube.admission.hooks import AdmissionResponse, AdmitFunc, Manifest

_IGNORE_DISRUPTIONS = {
    "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
}
_TEMPLATE = "/spec/template"
_JOB_TEMPLATE = "/spec/jobTemplate"


def admit_job(excluded_kinds: frozenset[str]) -> AdmitFunc:
    """Return the admit function for Jobs. Jobs of excluded owners are not touched."""

    def admit(job: Manifest, _: Manifest | None) -> AdmissionResponse:
        if _owner_kinds(job) & excluded_kinds:
            return AdmissionResponse()
        return AdmissionResponse(patch=tuple(_patch(job, [job], "")))

    return admit


def admit_cron_job(cron_job: Manifest, _: Manifest | None) -> AdmissionResponse:
    """Return the patch of a CronJob: annotations of the CronJob and of its Jobs reach the pods."""
    job = (cron_job.get("spec") or {}).get("jobTemplate") or {}
    return AdmissionResponse(patch=tuple(_patch(job, [job, cron_job], _JOB_TEMPLATE)))


def _patch(job: Manifest, owners: list[Manifest], path: str) -> list[Manifest]:
    spec = job.get("spec") or {}
    template = spec.get("template") or {}
    own = _annotations(template)
    inherited = requirements.inherit([_link(template, "Pod"), *(_link(owner, "Job") for owner in owners)])
    labels = _metadata(template).get("labels") or {}
    missing = {name: value for name, value in inherited.items() if name not in own and name not in labels}
    patch: list[Manifest] = []
    if missing and not _metadata(template):
        patch.append({"op": "add", "path": f"{path}{_TEMPLATE}/metadata", "value": {"annotations": missing}})
    elif missing:
        where = f"{path}{_TEMPLATE}/metadata/annotations"
        patch.append({"op": "add", "path": where, "value": {**own, **missing}})
    if _needs_failure_policy(spec, {**own, **missing}, labels):
        patch.append({"op": "add", "path": f"{path}/spec/podFailurePolicy", "value": _IGNORE_DISRUPTIONS})
        # The API server sets the default before it asks, and a pod failure policy allows this value only.
        patch.append({"op": "add", "path": f"{path}/spec/podReplacementPolicy", "value": "Failed"})
    return patch


def _needs_failure_policy(spec: Manifest, annotations: dict[str, str], labels: dict[str, str]) -> bool:
    pod_spec = (spec.get("template") or {}).get("spec") or {}
    if spec.get("podFailurePolicy") or pod_spec.get("restartPolicy") != "Never":
        return False
    return bool(requirements.parse(annotations, labels, PodSpecView()).provider)


def _link(object_: Manifest, kind: str) -> OwnerLink:
    metadata = _metadata(object_)
    return OwnerLink(
        kind=kind,
        name=str(metadata.get("name") or ""),
        annotations=_annotations(object_),
        labels=metadata.get("labels") or {},
    )


def _annotations(object_: Manifest) -> dict[str, str]:
    found: dict[str, str] = _metadata(object_).get("annotations") or {}
    return found


def _metadata(object_: Manifest) -> dict[str, Any]:
    return object_.get("metadata") or {}


def _owner_kinds(object_: Manifest) -> set[str]:
    return {str(row.get("kind")) for row in _metadata(object_).get("ownerReferences") or ()}
