"""The children of a model, as manifests. Pure: same model, same revision, same children.

Their number of servers is not in them: where an autoscaler sets it, each apply would take it back.
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
    """What makes a revision ready to be served; None where there is nothing to do.

    `keep` are folders that stay, `digest` what the content must have beside what the user says, and `is_shared` tells
    whether pods of several nodes can have the claim that it is copied from. It is not tried again by the Job's
    controller, which cannot tell what may pass from what will not, and would replace a pod that is evicted for want of
    room again and again. So each end is counted and told, and what may pass is tried again later.
    """
    entry = revisions.candidate(want, digest, is_shared=is_shared)
    template = pod_templates.prepare(serving, entry, keep, terms)
    if template is None:
        return None
    job = _child(JOB, serving, serving.names.job, labels.of_prepare(serving, entry))
    job["metadata"]["annotations"] = {Annotation.CIRCUMSTANCES: circumstances(serving, terms)}
    # One that is told to go has failed when it has ended: only then does it say how.
    job["spec"] = {"backoffLimit": 0, "podReplacementPolicy": "Failed", "template": template}
    return job


def circumstances(serving: Serving, terms: Terms) -> str:
    """Stands for what decides beside the revision whether it can be made ready: settings, and the size of its volume.

    They are no part of a revision. A server is the same whoever downloaded its model, and a setting that is changed
    would else have every model of the cluster downloaded and validated anew. A failure may be theirs, though.
    """
    size = serving.storage.size if serving.storage is not None else ""
    said = (terms.fetch_image, terms.allowed, terms.limit_bytes, terms.prepare_seconds, size)
    return hashlib.sha256(msgspec.json.encode(said)).hexdigest()[:_HASH]


def claim(serving: Serving) -> Manifest | None:
    """The volume that keeps the model; None where each pod has its own."""
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
    """What serves a revision. A server of another one ends only when one of this has been ready for a while."""
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
    """None where the model is not to be reached. Servers of `before` still answer, and stay to be reached."""
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
    """One revision of the history. Only what became of it can be changed later."""
    known = {**labels.of_child(serving), Label.REVISION: entry.hash}
    if entry.outcome:
        known[Label.OUTCOME] = entry.outcome
    child = _child(CONTROLLER_REVISION, serving, serving.names.revision(entry.hash), known)
    content = Content(entry.want, entry.digest, entry.bytes, entry.files, entry.claim, entry.seconds, entry.is_shared)
    return {**child, "revision": entry.number, "data": msgspec.to_builtins(content)}


def _service(serving: Serving, want: Want, before: Want, door: Door) -> Manifest:
    """By the port's name: while one runtime replaces another, each server is reached where it listens."""
    ports = [{"name": pod_templates.HTTP, "port": door.port, "targetPort": pod_templates.HTTP, "protocol": "TCP"}]
    named = {ROWS[want.runtime].grpc: f"{pod_templates.GRPC}-next", ROWS[before.runtime].grpc: pod_templates.GRPC}
    for grpc, name in named.items():
        if grpc is not None and grpc != door.port:
            ports.append({"name": name, "port": grpc, "targetPort": pod_templates.GRPC, "protocol": "TCP"})
    child = _child(SERVICE, serving, door.name, labels.of_child(serving))
    # Also by what a Service of an operator before us had chosen them by: that stays among the labels it chooses by.
    child["spec"] = {"selector": {**labels.known(serving), **labels.servers(serving)}, "ports": ports}
    return child


def _child(resource: Resource, serving: Serving, name: str, known: dict[str, str]) -> Manifest:
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": name, "namespace": serving.object.metadata.namespace, "labels": known},
    }
