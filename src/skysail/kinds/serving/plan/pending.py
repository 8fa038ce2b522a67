"""Pending reasons of a revision: what its download or its servers wait for, in one sentence. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from skysail.base.names import Condition as Type
from skysail.base.names import Reason
from skysail.core import conditions, pod_pending
from skysail.core.pod_pending import PendingReason
from skysail.kinds.serving.api.types import Download
from skysail.kinds.serving.children.fetch_container import NAME as FETCH
from skysail.kinds.serving.children.pod_templates import VALIDATION_CONTAINER
from skysail.kinds.serving.objects import Pod, newest
from skysail.kinds.serving.plan import download_progress, failure, rollout_deadline
from skysail.kinds.serving.plan.target_revision import Target
from skysail.kinds.serving.snapshot import Snapshot
from skysail.kinds.serving.spec.revisions import Revision
from skysail.kinds.serving.spec.runtimes import RUNTIMES

JOB_STARTING = PendingReason(Reason.DOWNLOADING, "The download is starting.")
PVC_CREATED = PendingReason(Reason.VOLUME_UNAVAILABLE, "The model's PVC is being provisioned.")
DOWNLOADS_AGAIN = PendingReason(Reason.ROLLING_OUT, "A server is downloading the model.")
# A server normally becomes ready within this time; later its state is worth a message.
_SILENCE = timedelta(minutes=1)
_UNITS = ("B", "kB", "MB", "GB", "TB")
_THOUSAND = 1000


def download_pending(snapshot: Snapshot, target: Target) -> PendingReason:
    """Return the pending reason of the prepare pod."""
    pod = newest(pod for pod in snapshot.preparing(target.hash) if not pod.metadata.is_deleting)
    is_bound = snapshot.claim is None or snapshot.claim.is_bound
    starts = JOB_STARTING if is_bound else PVC_CREATED
    if pod is None:
        return starts if snapshot.create_failure is None else pod_pending.creation_rejected(snapshot.create_failure)
    validation = pod.container(VALIDATION_CONTAINER)
    if validation is not None and validation.state.running is not None:
        return _validates(snapshot, validation.started_at)
    keeps = pod_pending.pending_reason(pod, "The download", event=snapshot.pod_event, previous=_before(snapshot))
    if keeps is not None:
        is_made = keeps.reason == Reason.VOLUME_UNAVAILABLE and download_progress.awaits_volume(snapshot, pod)
        return PVC_CREATED if is_made else keeps
    fetch = pod.container(FETCH)
    if fetch is not None and fetch.state.terminated is not None:
        return _as_before(snapshot, target)
    if fetch is None or fetch.state.running is None or download_progress.is_too_short(snapshot, pod):
        return starts
    return PendingReason(Reason.DOWNLOADING, _so_far(snapshot))


def _validates(snapshot: Snapshot, since: str | None) -> PendingReason:
    limit = snapshot.config.prepare_deadline_seconds
    if since:
        message = (
            f"The validation script has been running since {since}. The setting prepare_deadline_seconds limits "
            "download and "
            f"validation to {limit} s."
        )
    else:
        message = (
            "The validation script is running. The setting prepare_deadline_seconds limits download and validation to "
            f"{limit} s."
        )
    return PendingReason(Reason.VALIDATING, message)


def rollout_pending(snapshot: Snapshot, revision: Revision) -> PendingReason:
    """Return the pending reason of the servers of a revision."""
    deployment = snapshot.deployment
    start = PendingReason(Reason.ROLLING_OUT, f"The servers of revision {revision.number} are starting.")
    if deployment is None or deployment.revision != revision.hash:
        return start
    pods = snapshot.serving_pods(revision.hash)
    overdue_pods = [pod for pod in pods if not pod.is_ready]
    if deployment.replica_failure is not None and len(pods) < deployment.spec.replicas:
        return pod_pending.creation_rejected(deployment.replica_failure)
    for pod in overdue_pods:
        container_crash = failure.crashed(snapshot, revision, pod)
        if container_crash is not None:
            return PendingReason(Reason.CRASH_LOOP, f"{container_crash.message} The container is restarted.")
        keeps = rollout_deadline.server_pending(snapshot, pod, _before(snapshot))
        if keeps is not None:
            return keeps
    ready = len(pods) - len(overdue_pods)
    if ready:
        message = f"{ready} of {deployment.spec.replicas} servers of revision {revision.number} are ready."
        return PendingReason(Reason.ROLLING_OUT, message)
    return _without_word(snapshot, revision, overdue_pods) or start


def _without_word(snapshot: Snapshot, revision: Revision, overdue_pods: list[Pod]) -> PendingReason | None:
    """Return the pending reason if no server is ready and no pod reports a reason; None if there is none."""
    if any(pod.is_downloading for pod in overdue_pods):
        return DOWNLOADS_AGAIN
    return next((pending for pod in overdue_pods if (pending := _silent(snapshot, revision, pod)) is not None), None)


def until_unresponsive(snapshot: Snapshot, pods: Iterable[Pod]) -> float | None:
    """Return the seconds until a running server counts as silent; None if all have had their time."""
    servers = [pod for pod in pods if pod.serves and not pod.is_ready and pod.unscheduled_condition is None]
    running = [
        container.started_at for pod in servers for container in pod.containers if container.state.running is not None
    ]
    left = [_SILENCE - (snapshot.now - datetime.fromisoformat(since)) for since in running if since]
    return min((each.total_seconds() + 1 for each in left if each > timedelta()), default=None)


def _silent(snapshot: Snapshot, revision: Revision, pod: Pod) -> PendingReason | None:
    """Return the pending reason of a server that has run for a while without becoming ready, or None."""
    container = pod.container(RUNTIMES[revision.want.runtime].container)
    since = container.started_at if container is not None else None
    if since is None or snapshot.now - datetime.fromisoformat(since) < _SILENCE:
        return None
    message = (
        f"Server {pod.metadata.name} has been running since {since} and is not ready at "
        f"{rollout_deadline.readiness_endpoint(snapshot, revision)}: check its log."
    )
    return PendingReason(Reason.ROLLING_OUT, message)


def _as_before(snapshot: Snapshot, target: Target) -> PendingReason:
    """Return the previous pending reason: the download has finished, and its result follows in a moment."""
    status = snapshot.object.status
    condition = conditions.find_condition(status.conditions, Type.PROGRESSING)
    known = {reason.value: reason for reason in (Reason.DOWNLOADING, Reason.VALIDATING)}
    if condition is None or status.candidate != target.hash or condition.reason not in known:
        return JOB_STARTING
    return PendingReason(known[condition.reason], condition.message)


def size(amount: int) -> str:
    """Format an amount of bytes, such as `12.3 MB`."""
    figure, unit = float(amount), 0
    while figure >= _THOUSAND and unit < len(_UNITS) - 1:
        figure, unit = figure / _THOUSAND, unit + 1
    return f"{figure:.1f} {_UNITS[unit]}" if unit else f"{amount} B"


def _so_far(snapshot: Snapshot) -> str:
    known: Download | None = snapshot.download or snapshot.object.status.download
    if known is None or not known.bytes:
        return "The model is being downloaded."
    if known.total is None:
        return f"The model is being downloaded: {size(known.bytes)} so far."
    return f"The model is being downloaded: {size(known.bytes)} of {size(known.total)}."


def _before(snapshot: Snapshot) -> str:
    condition = conditions.find_condition(snapshot.object.status.conditions, Type.PROGRESSING)
    return condition.message if condition is not None else ""
