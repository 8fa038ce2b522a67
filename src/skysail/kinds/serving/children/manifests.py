"""Manifests of a model's children. Pure: same model, same revision, same children.

Replicas are not part of the Deployment manifest: each apply would undo the autoscaler's value.
"""

from __future__ import annotations

import hashlib

import msgspec

from skysail.base.names import Annotation, Label
from skysail.core.actions import Manifest
from skysail.kinds.serving.children import labels, pod_templates
from skysail.kinds.serving.spec import revisions
from skysail.kinds.serving.spec.config import ServingConfig
from skysail.kinds.serving.spec.desired import Autoscaling, DesiredModel, RevisionSpec, ServiceRef
from skysail.kinds.serving.spec.revisions import Revision, RevisionData
from skysail.kinds.serving.spec.runtimes import RUNTIMES
from skysail.kube.api.resources import (
    CONTROLLER_REVISION,
    DEPLOYMENT,
    HORIZONTAL_POD_AUTOSCALER,
    JOB,
    PERSISTENT_VOLUME_CLAIM,
    SERVICE,
    Resource,
)

_OLD_REPLICA_SETS = 3
_HASH = 10


def prepare_job(
    desired: DesiredModel,
    spec: RevisionSpec,
    keep: tuple[str, ...],
    config: ServingConfig,
    *,
    digest: str = "",
    is_shared: bool = False,
) -> Manifest | None:
    """Return the Job that prepares a revision, or None if there is nothing to prepare.

    `keep` lists folders that stay, `digest` is the expected digest in addition to the user's, and `is_shared` tells
    whether pods on several nodes can mount the source PVC. The Job has no retries: its controller cannot tell transient
    failures from permanent ones, and would recreate a pod that is evicted for lack of space again and again. The
    planner counts each failure and retries transient ones later.
    """
    revision = revisions.new_candidate(spec, digest, is_shared=is_shared)
    template = pod_templates.prepare_pod(desired, revision, keep, config)
    if template is None:
        return None
    job = _child(JOB, desired, desired.names.job, labels.for_job(desired, revision))
    job["metadata"]["annotations"] = {Annotation.PREPARE_CONFIG_HASH: prepare_config_hash(desired, config)}
    # Replace a pod only after it has failed, because only then does it report how it ended.
    job["spec"] = {"backoffLimit": 0, "podReplacementPolicy": "Failed", "template": template}
    return job


def prepare_config_hash(desired: DesiredModel, config: ServingConfig) -> str:
    """Hash everything beside the revision that decides whether preparation succeeds: settings and PVC size.

    These values are not part of the revision. Otherwise a changed setting would download and validate every model of
    the cluster again. But a failure may be due to them, so a change permits a retry.
    """
    size = desired.storage.size if desired.storage is not None else ""
    values = (config.fetch_image, config.allowed, config.limit_bytes, config.prepare_deadline_seconds, size)
    return hashlib.sha256(msgspec.json.encode(values)).hexdigest()[:_HASH]


def pvc(desired: DesiredModel) -> Manifest | None:
    """Return the model's PVC, or None if each pod stores the model itself."""
    model_storage = desired.storage
    if model_storage is None:
        return None
    child = _child(PERSISTENT_VOLUME_CLAIM, desired, desired.names.claim, labels.for_child(desired))
    child["spec"] = {
        "accessModes": ["ReadWriteMany" if model_storage.is_shared else "ReadWriteOnce"],
        "resources": {"requests": {"storage": model_storage.size}},
    }
    return child


def deployment(desired: DesiredModel, revision: Revision, config: ServingConfig) -> Manifest:
    """Return the Deployment of a revision. An old server terminates only after a new one has been ready for a while."""
    child = _child(DEPLOYMENT, desired, desired.names.deployment, labels.for_child(desired))
    child["spec"] = {
        "selector": {"matchLabels": labels.servers(desired)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "minReadySeconds": config.min_ready_seconds,
        "progressDeadlineSeconds": max(
            pod_templates.startup_timeout(desired, revision, config), config.min_ready_seconds + 1
        ),
        "revisionHistoryLimit": _OLD_REPLICA_SETS,
        "template": pod_templates.server_pod(desired, revision, config),
    }
    return child


def services(desired: DesiredModel, spec: RevisionSpec, previous: RevisionSpec | None = None) -> tuple[Manifest, ...]:
    """Return the Services; none if the model is not exposed. Servers of `previous` stay reachable."""
    return tuple(_service(desired, spec, previous or spec, service) for service in desired.services)


def autoscaler(desired: DesiredModel) -> Manifest | None:
    scale = desired.scale
    if not isinstance(scale, Autoscaling):
        return None
    target = {"type": "Utilization", "averageUtilization": scale.cpu_percent}
    child = _child(HORIZONTAL_POD_AUTOSCALER, desired, desired.names.autoscaler, labels.for_child(desired))
    child["spec"] = {
        "scaleTargetRef": {
            "apiVersion": DEPLOYMENT.api_version,
            "kind": DEPLOYMENT.kind,
            "name": desired.names.deployment,
        },
        "minReplicas": scale.min,
        "maxReplicas": scale.max,
        "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
    }
    return child


def controller_revision(desired: DesiredModel, revision: Revision) -> Manifest:
    """Return the ControllerRevision of a revision. Only its outcome and number can change later."""
    known = {**labels.for_child(desired), Label.REVISION: revision.hash}
    if revision.outcome:
        known[Label.OUTCOME] = revision.outcome
    child = _child(CONTROLLER_REVISION, desired, desired.names.revision(revision.hash), known)
    revision_data = RevisionData(
        revision.want,
        revision.digest,
        revision.bytes,
        revision.files,
        revision.claim,
        revision.seconds,
        revision.is_shared,
    )
    return {**child, "revision": revision.number, "data": msgspec.to_builtins(revision_data)}


def _service(desired: DesiredModel, spec: RevisionSpec, previous: RevisionSpec, service: ServiceRef) -> Manifest:
    """Return a Service that targets ports by name, so that servers of both runtimes are reachable during a switch."""
    ports = [{"name": pod_templates.HTTP, "port": service.port, "targetPort": pod_templates.HTTP, "protocol": "TCP"}]
    named = {
        RUNTIMES[spec.runtime].grpc: f"{pod_templates.GRPC}-next",
        RUNTIMES[previous.runtime].grpc: pod_templates.GRPC,
    }
    for grpc, name in named.items():
        if grpc is not None and grpc != service.port:
            ports.append({"name": name, "port": grpc, "targetPort": pod_templates.GRPC, "protocol": "TCP"})
    child = _child(SERVICE, desired, service.name, labels.for_child(desired))
    # Keep the legacy label in the selector: a Service of the previous operator selects by it.
    child["spec"] = {"selector": {**labels.legacy_labels(desired), **labels.servers(desired)}, "ports": ports}
    return child


def _child(resource: Resource, desired: DesiredModel, name: str, known: dict[str, str]) -> Manifest:
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": name, "namespace": desired.object.metadata.namespace, "labels": known},
    }
