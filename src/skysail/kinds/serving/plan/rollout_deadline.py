"""Pending reasons of servers, and failures of those that were not ready before the rollout deadline. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from skysail.base.names import Annotation, Reason
from skysail.core import pod_pending
from skysail.core.pod_pending import PendingReason
from skysail.kinds.serving.api.types import Failure
from skysail.kinds.serving.children import pod_templates
from skysail.kinds.serving.objects import Deployment, Pod
from skysail.kinds.serving.snapshot import Snapshot
from skysail.kinds.serving.spec.revisions import Revision
from skysail.kinds.serving.spec.runtimes import RUNTIMES


def is_exceeded(deployment: Deployment, pods: Iterable[Pod]) -> bool:
    """Return whether these pods exceeded the Deployment's progress deadline.

    After a rollback the Deployment's condition may still describe the failed ReplicaSet. It counts only if its message
    names the ReplicaSet of these pods, or if no pod could be created at all.
    """
    sets = {owner.name for pod in pods if (owner := pod.metadata.controller) is not None}
    if deployment.replica_failure is not None:
        return bool(deployment.deadline_message)
    return any(f'"{name}"' in deployment.deadline_message for name in sets)


def server_pending(snapshot: Snapshot, pod: Pod, previous: str = "") -> PendingReason | None:
    """Return why a server does not start, or None if no reason is known. `previous` is the message until now."""
    who = f"Server {pod.metadata.name}"
    keeps = pod_pending.pending_reason(pod, who, event=snapshot.pod_event, previous=previous)
    if keeps is None or keeps.reason != Reason.INSTANCE_LIMIT_REACHED or not any(map(_answers, snapshot.pods)):
        return keeps
    # The old server ends only after the new one is ready, so to wait does not help.
    return PendingReason(keeps.reason, f"{keeps.message} To replace a server, one more instance must be allowed.")


def _answers(pod: Pod) -> bool:
    return pod.serves and pod.is_ready


def deadline_failure(snapshot: Snapshot, revision: Revision, waited_for: list[Pod]) -> Failure:
    """Return why the servers are late: not created, not started, still downloading, or running but not ready."""
    deployment = snapshot.deployment
    assert deployment is not None, "only servers of a Deployment can be late"
    if deployment.replica_failure is not None:
        pending = pod_pending.creation_rejected(deployment.replica_failure)
        return Failure(step="Deploy", reason=pending.reason, message=pending.message)
    for pod in waited_for:
        keeps = server_pending(snapshot, pod)
        if keeps is not None:
            return Failure(step="Deploy", reason=keeps.reason, message=keeps.message)
    slow = next((pod for pod in waited_for if pod.is_downloading), None)
    seconds = pod_templates.startup_timeout(snapshot.serving, revision, snapshot.config)
    if slow is not None:
        return _downloads(slow, revision, seconds)
    if not waited_for:
        return _missing(deployment, seconds)
    message = _asked(snapshot, revision, waited_for[0], seconds)
    return Failure(step="Ready", reason=Reason.NOT_READY, message=message)


def _missing(deployment: Deployment, seconds: int) -> Failure:
    """Return the failure of pods that should exist and report nothing."""
    message = (
        f"{deployment.status.updated_replicas} of {deployment.spec.replicas} servers were created within {seconds} s, "
        f"for an unknown reason: run `kubectl describe deployment {deployment.metadata.name}`."
    )
    return Failure(step="Deploy", reason=Reason.NOT_READY, message=message)


def _asked(snapshot: Snapshot, revision: Revision, pod: Pod, seconds: int) -> str:
    """Return the message for a running server. A custom image may report readiness at another path."""
    spec = revision.want
    if snapshot.config.matching_runtime(spec.image, spec.runtime) and not spec.ready:
        return f"Server {pod.metadata.name} is running but did not become ready within {seconds} s: check its log."
    return (
        f"Server {pod.metadata.name} is running but did not become ready at "
        f"{readiness_endpoint(snapshot, revision)} within {seconds} "
        f"s: check its log, or name its readiness path in annotation {Annotation.READY_PATH}."
    )


def readiness_endpoint(snapshot: Snapshot, revision: Revision) -> str:
    """Return path and port of the readiness check."""
    runtime = RUNTIMES[revision.want.runtime]
    return f"{revision.want.ready or runtime.ready_path(snapshot.serving.names.model)} on port {runtime.port}"


def _downloads(pod: Pod, revision: Revision, seconds: int) -> Failure:
    if revision.seconds:
        message = (
            f"Server {pod.metadata.name} is still downloading the model after {seconds} s, but the first download took "
            f"{revision.seconds} s: check the network of its node, or raise the setting progress_deadline_seconds."
        )
    else:
        message = (
            f"Server {pod.metadata.name} is still downloading the model after {seconds} s: check the network of its "
            "node, or raise the setting progress_deadline_seconds."
        )
    return Failure(step="Deploy", reason=Reason.DEADLINE_EXCEEDED, message=message)
