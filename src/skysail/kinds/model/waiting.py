"""What a revision that is on its way waits for, in one sentence. Pure."""

from __future__ import annotations

from skysail.base.names import Condition as Type
from skysail.base.names import Reason
from skysail.core import conditions, obstacles
from skysail.core.obstacles import Wait
from skysail.kinds.model import failure, progress
from skysail.kinds.model.fetching import NAME as FETCH
from skysail.kinds.model.pods import VALIDATION
from skysail.kinds.model.revisions import Entry
from skysail.kinds.model.snapshot import Snapshot
from skysail.kinds.model.targets import Target
from skysail.kinds.model.types import Download
from skysail.kinds.model.workload import newest

STARTS = Wait(Reason.DOWNLOADING, "The download starts.")
MADE = Wait(Reason.VOLUME_UNAVAILABLE, "The volume of the model is being made.")
DOWNLOADS_AGAIN = Wait(Reason.ROLLING_OUT, "A server downloads the model that was found good.")
_UNITS = ("B", "kB", "MB", "GB", "TB")
_THOUSAND = 1000


def for_download(snapshot: Snapshot, wanted: Target) -> Wait:
    """Where the pod is that makes a revision ready."""
    pod = newest(pod for pod in snapshot.preparing(wanted.hash) if not pod.metadata.is_deleting)
    is_bound = snapshot.claim is None or snapshot.claim.is_bound
    starts = STARTS if is_bound else MADE
    if pod is None:
        return starts if snapshot.complaint is None else obstacles.refused(snapshot.complaint)
    validation = pod.container(VALIDATION)
    if validation is not None and validation.state.running is not None:
        return Wait(Reason.VALIDATING, "The model was downloaded, and the validation script runs.")
    keeps = obstacles.obstacle(pod, "The download", told=snapshot.obstacle, before=_before(snapshot))
    if keeps is not None:
        is_made = keeps.reason == Reason.VOLUME_UNAVAILABLE and progress.awaits_volume(snapshot, pod)
        return MADE if is_made else keeps
    fetch = pod.container(FETCH)
    if fetch is not None and fetch.state.terminated is not None:
        return _as_before(snapshot, wanted)
    if fetch is None or fetch.state.running is None or progress.is_brief(snapshot, pod):
        return starts
    return Wait(Reason.DOWNLOADING, f"The model is being downloaded{_so_far(snapshot)}.")


def for_servers(snapshot: Snapshot, entry: Entry) -> Wait:
    """What keeps servers of a revision from answering."""
    deployment = snapshot.deployment
    start = Wait(Reason.ROLLING_OUT, f"The servers of revision {entry.number} start.")
    if deployment is None or deployment.revision != entry.hash:
        return start
    pods = snapshot.serving_pods(entry.hash)
    late = [pod for pod in pods if not pod.is_ready]
    if deployment.refusal is not None and len(pods) < deployment.spec.replicas:
        return obstacles.refused(deployment.refusal)
    for pod in late:
        crash = failure.crashed(snapshot, entry, pod)
        if crash is not None:
            return Wait(Reason.CRASH_LOOP, f"{crash.message} It is started again.")
        who = f"Server {pod.metadata.name}"
        keeps = obstacles.obstacle(pod, who, told=snapshot.obstacle, before=_before(snapshot))
        if keeps is not None:
            return keeps
    ready = len(pods) - len(late)
    if not ready:
        return DOWNLOADS_AGAIN if any(pod.is_downloading for pod in late) else start
    return Wait(
        Reason.ROLLING_OUT,
        f"{ready} of {deployment.spec.replicas} servers of revision {entry.number} answer.",
    )


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
