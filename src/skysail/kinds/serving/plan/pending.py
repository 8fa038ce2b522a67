"""Pending reasons of a revision: what its download or its servers wait for, in one sentence. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from skysail.base.names import Condition as Type
from skysail.base.names import Reason
from skysail.core import conditions, pod_pending
from skysail.core.pod_pending import Wait
from skysail.kinds.serving.api.types import Download
from skysail.kinds.serving.children.fetch_container import NAME as FETCH
from skysail.kinds.serving.children.pod_templates import VALIDATION_CONTAINER
from skysail.kinds.serving.objects import Pod, newest
from skysail.kinds.serving.plan import download_progress, failure, rollout_deadline
from skysail.kinds.serving.plan.target_revision import Target
from skysail.kinds.serving.snapshot import Snapshot
from skysail.kinds.serving.spec.revisions import Entry
from skysail.kinds.serving.spec.runtimes import ROWS

STARTS = Wait(Reason.DOWNLOADING, "The download is starting.")
MADE = Wait(Reason.VOLUME_UNAVAILABLE, "The model's PVC is being provisioned.")
DOWNLOADS_AGAIN = Wait(Reason.ROLLING_OUT, "A server is downloading the model.")
# A server normally becomes ready within this time; later its state is worth a message.
_SILENCE = timedelta(minutes=1)
_UNITS = ("B", "kB", "MB", "GB", "TB")
_THOUSAND = 1000


def for_download(snapshot: Snapshot, wanted: Target) -> Wait:
    """Return the pending reason of the prepare pod."""
    pod = newest(pod for pod in snapshot.preparing(wanted.hash) if not pod.metadata.is_deleting)
    is_bound = snapshot.claim is None or snapshot.claim.is_bound
    starts = STARTS if is_bound else MADE
    if pod is None:
        return starts if snapshot.complaint is None else pod_pending.refused(snapshot.complaint)
    validation = pod.container(VALIDATION_CONTAINER)
    if validation is not None and validation.state.running is not None:
        return _validates(snapshot, validation.started_at)
    keeps = pod_pending.obstacle(pod, "The download", told=snapshot.obstacle, before=_before(snapshot))
    if keeps is not None:
        is_made = keeps.reason == Reason.VOLUME_UNAVAILABLE and download_progress.awaits_volume(snapshot, pod)
        return MADE if is_made else keeps
    fetch = pod.container(FETCH)
    if fetch is not None and fetch.state.terminated is not None:
        return _as_before(snapshot, wanted)
    if fetch is None or fetch.state.running is None or download_progress.is_brief(snapshot, pod):
        return starts
    return Wait(Reason.DOWNLOADING, _so_far(snapshot))


def _validates(snapshot: Snapshot, since: str | None) -> Wait:
    limit = snapshot.terms.prepare_seconds
    if since:
        message = (
            f"The validation script has been running since {since}. The setting prepare_seconds limits download and "
            f"validation to {limit} s."
        )
    else:
        message = (
            "The validation script is running. The setting prepare_seconds limits download and validation to "
            f"{limit} s."
        )
    return Wait(Reason.VALIDATING, message)


def for_servers(snapshot: Snapshot, entry: Entry) -> Wait:
    """Return the pending reason of the servers of a revision."""
    deployment = snapshot.deployment
    start = Wait(Reason.ROLLING_OUT, f"The servers of revision {entry.number} are starting.")
    if deployment is None or deployment.revision != entry.hash:
        return start
    pods = snapshot.serving_pods(entry.hash)
    late = [pod for pod in pods if not pod.is_ready]
    if deployment.refusal is not None and len(pods) < deployment.spec.replicas:
        return pod_pending.refused(deployment.refusal)
    for pod in late:
        crash = failure.crashed(snapshot, entry, pod)
        if crash is not None:
            return Wait(Reason.CRASH_LOOP, f"{crash.message} The container is restarted.")
        who = f"Server {pod.metadata.name}"
        keeps = pod_pending.obstacle(pod, who, told=snapshot.obstacle, before=_before(snapshot))
        if keeps is not None:
            return keeps
    ready = len(pods) - len(late)
    if ready:
        told = f"{ready} of {deployment.spec.replicas} servers of revision {entry.number} are ready."
        return Wait(Reason.ROLLING_OUT, told)
    return _without_word(snapshot, entry, late) or start


def _without_word(snapshot: Snapshot, entry: Entry, late: list[Pod]) -> Wait | None:
    """Return the pending reason if no server is ready and no pod reports a reason; None if there is none."""
    if any(pod.is_downloading for pod in late):
        return DOWNLOADS_AGAIN
    return next((wait for pod in late if (wait := _silent(snapshot, entry, pod)) is not None), None)


def until_silent(snapshot: Snapshot, pods: Iterable[Pod]) -> float | None:
    """Return the seconds until a running server counts as silent; None if all have had their time."""
    servers = [pod for pod in pods if pod.serves and not pod.is_ready and pod.unscheduled is None]
    running = [row.started_at for pod in servers for row in pod.containers if row.state.running is not None]
    left = [_SILENCE - (snapshot.now - datetime.fromisoformat(since)) for since in running if since]
    return min((each.total_seconds() + 1 for each in left if each > timedelta()), default=None)


def _silent(snapshot: Snapshot, entry: Entry, pod: Pod) -> Wait | None:
    """Return the pending reason of a server that has run for a while without becoming ready, or None."""
    row = pod.container(ROWS[entry.want.runtime].container)
    since = row.started_at if row is not None else None
    if since is None or snapshot.now - datetime.fromisoformat(since) < _SILENCE:
        return None
    message = (
        f"Server {pod.metadata.name} has been running since {since} and is not ready at "
        f"{rollout_deadline.place(snapshot, entry)}: check its log."
    )
    return Wait(Reason.ROLLING_OUT, message)


def _as_before(snapshot: Snapshot, wanted: Target) -> Wait:
    """Return the previous pending reason: the download has finished, and its result follows in a moment."""
    status = snapshot.object.status
    said = conditions.find(status.conditions, Type.PROGRESSING)
    known = {reason.value: reason for reason in (Reason.DOWNLOADING, Reason.VALIDATING)}
    if said is None or status.candidate != wanted.hash or said.reason not in known:
        return STARTS
    return Wait(known[said.reason], said.message)


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
    found = conditions.find(snapshot.object.status.conditions, Type.PROGRESSING)
    return found.message if found is not None else ""
