"""Failures of servers that did not become ready before the rollout deadline and report no reason. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from skysail.base.names import Annotation, Reason
from skysail.core import pod_pending
from skysail.kinds.serving.api.types import Failure
from skysail.kinds.serving.children import pod_templates
from skysail.kinds.serving.objects import Deployment, Pod
from skysail.kinds.serving.snapshot import Snapshot
from skysail.kinds.serving.spec.revisions import Entry
from skysail.kinds.serving.spec.runtimes import ROWS


def is_late(deployment: Deployment, pods: Iterable[Pod]) -> bool:
    """Return whether these pods exceeded the Deployment's progress deadline.

    After a rollback the Deployment's condition may still describe the failed ReplicaSet. It counts only if its message
    names the ReplicaSet of these pods, or if no pod could be created at all.
    """
    sets = {owner.name for pod in pods if (owner := pod.metadata.controller) is not None}
    if deployment.refusal is not None:
        return bool(deployment.overdue)
    return any(f'"{name}"' in deployment.overdue for name in sets)


def late(snapshot: Snapshot, entry: Entry, waited_for: list[Pod]) -> Failure:
    """Return why the servers are late: not created, not started, still downloading, or running but not ready."""
    deployment = snapshot.deployment
    assert deployment is not None, "only servers of a Deployment can be late"
    if deployment.refusal is not None:
        wait = pod_pending.refused(deployment.refusal)
        return Failure(step="Deploy", reason=wait.reason, message=wait.message)
    for pod in waited_for:
        keeps = pod_pending.obstacle(pod, f"Server {pod.metadata.name}", told=snapshot.obstacle)
        if keeps is not None:
            return Failure(step="Deploy", reason=keeps.reason, message=keeps.message)
    slow = next((pod for pod in waited_for if pod.is_downloading), None)
    seconds = pod_templates.patience(snapshot.serving, entry, snapshot.terms)
    if slow is not None:
        return _downloads(slow, entry, seconds)
    if not waited_for:
        return _missing(deployment, seconds)
    message = _asked(snapshot, entry, waited_for[0], seconds)
    return Failure(step="Ready", reason=Reason.NOT_READY, message=message)


def _missing(deployment: Deployment, seconds: int) -> Failure:
    """Return the failure of pods that should exist and report nothing."""
    message = (
        f"{deployment.status.updated_replicas} of {deployment.spec.replicas} servers were created within {seconds} s, "
        f"for an unknown reason: run `kubectl describe deployment {deployment.metadata.name}`."
    )
    return Failure(step="Deploy", reason=Reason.NOT_READY, message=message)


def _asked(snapshot: Snapshot, entry: Entry, pod: Pod, seconds: int) -> str:
    """Return the message for a running server. A custom image may report readiness at another path."""
    want = entry.want
    if snapshot.terms.known(want.image, want.runtime) and not want.ready:
        return f"Server {pod.metadata.name} is running but did not become ready within {seconds} s: check its log."
    return (
        f"Server {pod.metadata.name} is running but did not become ready at {place(snapshot, entry)} within {seconds} "
        f"s: check its log, or name its readiness path in annotation {Annotation.READY_PATH}."
    )


def place(snapshot: Snapshot, entry: Entry) -> str:
    """Return path and port of the readiness check."""
    row = ROWS[entry.want.runtime]
    return f"{entry.want.ready or row.ready_path(snapshot.serving.names.model)} on port {row.port}"


def _downloads(pod: Pod, entry: Entry, seconds: int) -> Failure:
    if entry.seconds:
        message = (
            f"Server {pod.metadata.name} is still downloading the model after {seconds} s, but the first download took "
            f"{entry.seconds} s: check the network of its node, or raise the setting rollout_seconds."
        )
    else:
        message = (
            f"Server {pod.metadata.name} is still downloading the model after {seconds} s: check the network of its "
            "node, or raise the setting rollout_seconds."
        )
    return Failure(step="Deploy", reason=Reason.DEADLINE_EXCEEDED, message=message)
