"""What a revision that is on its way waits for, in one sentence. Pure."""

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

STARTS = Wait(Reason.DOWNLOADING, "The download starts.")
MADE = Wait(Reason.VOLUME_UNAVAILABLE, "The volume of the model is being made.")
DOWNLOADS_AGAIN = Wait(Reason.ROLLING_OUT, "A server downloads the model that was found good.")
# A server says that it is ready within so long, unless its model is large or something is wrong.
_SILENCE = timedelta(minutes=1)
_UNITS = ("B", "kB", "MB", "GB", "TB")
_THOUSAND = 1000


def for_download(snapshot: Snapshot, wanted: Target) -> Wait:
    """Where the pod is that makes a revision ready."""
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
    return Wait(Reason.DOWNLOADING, f"The model is being downloaded{_so_far(snapshot)}.")


def _validates(snapshot: Snapshot, since: str | None) -> Wait:
    runs = f"runs since {since}" if since else "runs"
    limit = f"It and the download have {snapshot.terms.prepare_seconds} s (setting prepare_seconds)"
    return Wait(Reason.VALIDATING, f"The model was downloaded, and the validation script {runs}. {limit}.")


def for_servers(snapshot: Snapshot, entry: Entry) -> Wait:
    """What keeps servers of a revision from answering."""
    deployment = snapshot.deployment
    start = Wait(Reason.ROLLING_OUT, f"The servers of revision {entry.number} start.")
    if deployment is None or deployment.revision != entry.hash:
        return start
    pods = snapshot.serving_pods(entry.hash)
    late = [pod for pod in pods if not pod.is_ready]
    if deployment.refusal is not None and len(pods) < deployment.spec.replicas:
        return pod_pending.refused(deployment.refusal)
    for pod in late:
        crash = failure.crashed(snapshot, entry, pod)
        if crash is not None:
            return Wait(Reason.CRASH_LOOP, f"{crash.message} It is started again.")
        who = f"Server {pod.metadata.name}"
        keeps = pod_pending.obstacle(pod, who, told=snapshot.obstacle, before=_before(snapshot))
        if keeps is not None:
            return keeps
    ready = len(pods) - len(late)
    if ready:
        told = f"{ready} of {deployment.spec.replicas} servers of revision {entry.number} answer."
        return Wait(Reason.ROLLING_OUT, told)
    return _without_word(snapshot, entry, late) or start


def _without_word(snapshot: Snapshot, entry: Entry, late: list[Pod]) -> Wait | None:
    """Servers that nothing is known to keep, and of which none answers."""
    if any(pod.is_downloading for pod in late):
        return DOWNLOADS_AGAIN
    return next((wait for pod in late if (wait := _silent(snapshot, entry, pod)) is not None), None)


def until_silent(snapshot: Snapshot, pods: Iterable[Pod]) -> float | None:
    """In how many seconds a server that runs has had its time to say that it is ready; None where none has any left."""
    servers = [pod for pod in pods if pod.serves and not pod.is_ready and pod.unscheduled is None]
    running = [row.started_at for pod in servers for row in pod.containers if row.state.running is not None]
    left = [_SILENCE - (snapshot.now - datetime.fromisoformat(since)) for since in running if since]
    return min((each.total_seconds() + 1 for each in left if each > timedelta()), default=None)


def _silent(snapshot: Snapshot, entry: Entry, pod: Pod) -> Wait | None:
    """One that runs for a while and does not say that it is ready; large models take their time."""
    row = pod.container(ROWS[entry.want.runtime].container)
    since = row.started_at if row is not None else None
    if since is None or snapshot.now - datetime.fromisoformat(since) < _SILENCE:
        return None
    where = rollout_deadline.place(snapshot, entry)
    who = f"Server {pod.metadata.name} runs since {since}"
    return Wait(Reason.ROLLING_OUT, f"{who} and has not said at {where} that it is ready. Its log may tell why.")


def _as_before(snapshot: Snapshot, wanted: Target) -> Wait:
    """What has ended is told when it is known what it came to, in a moment."""
    status = snapshot.object.status
    said = conditions.find(status.conditions, Type.PROGRESSING)
    known = {reason.value: reason for reason in (Reason.DOWNLOADING, Reason.VALIDATING)}
    if said is None or status.candidate != wanted.hash or said.reason not in known:
        return STARTS
    return Wait(known[said.reason], said.message)


def size(amount: int) -> str:
    """As people read it: `12.3 MB`."""
    figure, unit = float(amount), 0
    while figure >= _THOUSAND and unit < len(_UNITS) - 1:
        figure, unit = figure / _THOUSAND, unit + 1
    return f"{figure:.1f} {_UNITS[unit]}" if unit else f"{amount} B"


def _so_far(snapshot: Snapshot) -> str:
    known: Download | None = snapshot.download or snapshot.object.status.download
    if known is None or not known.bytes:
        return ""
    if known.total is None:
        return f": {size(known.bytes)} so far"
    return f": {size(known.bytes)} of {size(known.total)}"


def _before(snapshot: Snapshot) -> str:
    found = conditions.find(snapshot.object.status.conditions, Type.PROGRESSING)
    return found.message if found is not None else ""
