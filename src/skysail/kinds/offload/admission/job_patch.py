"""Patch of a Job or CronJob at its creation. Pure.

Annotations of a Job are not on its pods, so those that ask for a cloud are copied into the pod template. A Job whose
pods may have to change the provider gets a pod failure policy, so that a disruption costs no retry.
"""

from __future__ import annotations

from skysail.claims.requirements import annotations as requirements
from skysail.claims.requirements.types import PodSpecView
from skysail.kinds.offload.admission import template_annotations
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
    missing = template_annotations.missing(template, owners)
    patch = template_annotations.patch(template, missing, f"{path}{_TEMPLATE}")
    labels = template_annotations.metadata(template).get("labels") or {}
    if _needs_failure_policy(spec, {**template_annotations.of(template), **missing}, labels):
        patch.append({"op": "add", "path": f"{path}/spec/podFailurePolicy", "value": _IGNORE_DISRUPTIONS})
        # The API server sets the default before it asks, and a pod failure policy allows this value only.
        patch.append({"op": "add", "path": f"{path}/spec/podReplacementPolicy", "value": "Failed"})
    return patch


def _needs_failure_policy(spec: Manifest, annotations: dict[str, str], labels: dict[str, str]) -> bool:
    pod_spec = (spec.get("template") or {}).get("spec") or {}
    if spec.get("podFailurePolicy") or pod_spec.get("restartPolicy") != "Never":
        return False
    return bool(requirements.parse(annotations, labels, PodSpecView()).provider)


def _owner_kinds(object_: Manifest) -> set[str]:
    return {str(row.get("kind")) for row in template_annotations.metadata(object_).get("ownerReferences") or ()}
