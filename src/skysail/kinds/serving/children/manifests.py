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
from skysail.kinds.serving.spec.config import Terms
from skysail.kinds.serving.spec.desired import Auto, Door, Serving, Want
from skysail.kinds.serving.spec.revisions import Content, Entry
from skysail.kinds.serving.spec.runtimes import ROWS
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
    serving: Serving, want: Want, keep: tuple[str, ...], terms: Terms, *, digest: str = "", is_shared: bool = False
) -> Manifest | None:
    """Return the Job that prepares a revision, or None if there is nothing to prepare.

    `keep` lists folders that stay, `digest` is the expected digest in addition to the user's, and `is_shared` tells
    whether pods on several nodes can mount the source PVC. The Job has no retries: its controller cannot tell transient
    failures from permanent ones, and would recreate a pod that is evicted for lack of space again and again. The
    planner counts each failure and retries transient ones later.
    """
    entry = revisions.candidate(want, digest, is_shared=is_shared)
    template = pod_templates.prepare(serving, entry, keep, terms)
    if template is None:
        return None
    job = _child(JOB, serving, serving.names.job, labels.of_prepare(serving, entry))
    job["metadata"]["annotations"] = {Annotation.CIRCUMSTANCES: circumstances(serving, terms)}
    # Replace a pod only after it has failed, because only then does it report how it ended.
    job["spec"] = {"backoffLimit": 0, "podReplacementPolicy": "Failed", "template": template}
    return job


def circumstances(serving: Serving, terms: Terms) -> str:
    """Hash everything beside the revision that decides whether preparation succeeds: settings and PVC size.

    These values are not part of the revision. Otherwise a changed setting would download and validate every model of
    the cluster again. But a failure may be due to them, so a change permits a retry.
    """
    size = serving.storage.size if serving.storage is not None else ""
    said = (terms.fetch_image, terms.allowed, terms.limit_bytes, terms.prepare_seconds, size)
    return hashlib.sha256(msgspec.json.encode(said)).hexdigest()[:_HASH]


def claim(serving: Serving) -> Manifest | None:
    """Return the model's PVC, or None if each pod stores the model itself."""
    storage = serving.storage
    if storage is None:
        return None
    child = _child(PERSISTENT_VOLUME_CLAIM, serving, serving.names.claim, labels.of_child(serving))
    child["spec"] = {
        "accessModes": ["ReadWriteMany" if storage.is_shared else "ReadWriteOnce"],
        "resources": {"requests": {"storage": storage.size}},
    }
    return child


def deployment(serving: Serving, entry: Entry, terms: Terms) -> Manifest:
    """Return the Deployment of a revision. An old server terminates only after a new one has been ready for a while."""
    child = _child(DEPLOYMENT, serving, serving.names.deployment, labels.of_child(serving))
    child["spec"] = {
        "selector": {"matchLabels": labels.servers(serving)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "minReadySeconds": terms.soak_seconds,
        "progressDeadlineSeconds": max(pod_templates.patience(serving, entry, terms), terms.soak_seconds + 1),
        "revisionHistoryLimit": _OLD_REPLICA_SETS,
        "template": pod_templates.server(serving, entry, terms),
    }
    return child


def services(serving: Serving, want: Want, before: Want | None = None) -> tuple[Manifest, ...]:
    """Return the Services; none if the model is not exposed. Servers of `before` stay reachable."""
    return tuple(_service(serving, want, before or want, door) for door in serving.doors)


def autoscaler(serving: Serving) -> Manifest | None:
    scale = serving.scale
    if not isinstance(scale, Auto):
        return None
    target = {"type": "Utilization", "averageUtilization": scale.cpu_percent}
    child = _child(HORIZONTAL_POD_AUTOSCALER, serving, serving.names.autoscaler, labels.of_child(serving))
    child["spec"] = {
        "scaleTargetRef": {
            "apiVersion": DEPLOYMENT.api_version,
            "kind": DEPLOYMENT.kind,
            "name": serving.names.deployment,
        },
        "minReplicas": scale.min,
        "maxReplicas": scale.max,
        "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
    }
    return child


def revision(serving: Serving, entry: Entry) -> Manifest:
    """Return the ControllerRevision of a revision. Only its outcome and number can change later."""
    known = {**labels.of_child(serving), Label.REVISION: entry.hash}
    if entry.outcome:
        known[Label.OUTCOME] = entry.outcome
    child = _child(CONTROLLER_REVISION, serving, serving.names.revision(entry.hash), known)
    content = Content(entry.want, entry.digest, entry.bytes, entry.files, entry.claim, entry.seconds, entry.is_shared)
    return {**child, "revision": entry.number, "data": msgspec.to_builtins(content)}


def _service(serving: Serving, want: Want, before: Want, door: Door) -> Manifest:
    """Return a Service that targets ports by name, so that servers of both runtimes are reachable during a switch."""
    ports = [{"name": pod_templates.HTTP, "port": door.port, "targetPort": pod_templates.HTTP, "protocol": "TCP"}]
    named = {ROWS[want.runtime].grpc: f"{pod_templates.GRPC}-next", ROWS[before.runtime].grpc: pod_templates.GRPC}
    for grpc, name in named.items():
        if grpc is not None and grpc != door.port:
            ports.append({"name": name, "port": grpc, "targetPort": pod_templates.GRPC, "protocol": "TCP"})
    child = _child(SERVICE, serving, door.name, labels.of_child(serving))
    # Keep the legacy label in the selector: a Service of the previous operator selects by it.
    child["spec"] = {"selector": {**labels.known(serving), **labels.servers(serving)}, "ports": ports}
    return child


def _child(resource: Resource, serving: Serving, name: str, known: dict[str, str]) -> Manifest:
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": name, "namespace": serving.object.metadata.namespace, "labels": known},
    }
