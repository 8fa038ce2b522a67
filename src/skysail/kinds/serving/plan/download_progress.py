"""Progress of a download, read from its log, and intervals for reading what no watch reports. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from skysail.base import untrusted_json
from skysail.base.timestamps import timestamp
from skysail.core import pod_pending
from skysail.kinds.serving.api.types import Download
from skysail.kinds.serving.children.fetch_container import NAME as FETCH
from skysail.kinds.serving.objects import Pod
from skysail.kinds.serving.snapshot import Snapshot

# Do not report the progress of a download that is this short.
_MOMENT = timedelta(seconds=3)
# Intervals for reading the log (and writing the status for it) and for asking why a pod does not start. They grow with
# the waiting time, so that a thousand waiting models cost little.
_MIN_INTERVAL = timedelta(seconds=10)
_LATEST_PROGRESS = timedelta(minutes=1)
_LATEST_WORD = timedelta(minutes=5)
_MAX_SECONDS = 2**31 - 1
_MAX_BYTES = 2**53 - 1


class _Progress(msgspec.Struct, frozen=True):
    """Last line of a download's log."""

    bytes: int
    total: int | None = None
    seconds_left: float | None = None


def parse(line: str, now: datetime) -> Download | None:
    """Return the progress in a log line, or None if the line is something else."""
    try:
        reported = untrusted_json.decode(line.strip(), _Progress)
    except untrusted_json.InvalidJson:
        return None
    here, total = min(max(reported.bytes, 0), _MAX_BYTES), reported.total
    is_known = total is not None and here <= total <= _MAX_BYTES and total > 0
    seconds_left = reported.seconds_left
    return Download(
        bytes=here,
        total=total if is_known else None,
        percent=here * 100 // total if total is not None and is_known else None,
        remaining_seconds=int(seconds_left) if seconds_left is not None and 0 <= seconds_left <= _MAX_SECONDS else None,
        last_updated_time=timestamp(now),
    )


def is_due(snapshot: Snapshot, pod: Pod, revision: str) -> bool:
    """Return whether to read the progress of the download in this pod."""
    if is_too_short(snapshot, pod):
        return False
    status = snapshot.object.status
    known = status.download.last_updated_time if status.download is not None else None
    if known is None or status.candidate != revision:
        return True
    elapsed = _since(snapshot, known)
    return elapsed >= _until_progress(_lasts(snapshot, pod) - elapsed)


def is_too_short(snapshot: Snapshot, pod: Pod) -> bool:
    """Return whether the download started only a moment ago."""
    return _lasts(snapshot, pod) < _MOMENT


def awaits_volume(snapshot: Snapshot, pod: Pod) -> bool:
    """Return whether the pod is unscheduled because its PVC was created only just now."""
    is_new = _since(snapshot, pod.metadata.creation_timestamp) < _MIN_INTERVAL
    return is_new and snapshot.claim is not None and pod.unscheduled_condition is not None


def next_poll(snapshot: Snapshot, pods: tuple[Pod, ...]) -> float | None:
    """Return the seconds until the next read of the progress or the pending reason; None if a watch reports all.

    Without a pod, the time counts from the creation of the Job.
    """
    loading = next((pod for pod in pods if pod.is_downloading and pod.prepares), None)
    if loading is not None:
        ran = _lasts(snapshot, loading)
        return (_MOMENT - ran if ran < _MOMENT else _until_progress(ran)).total_seconds()
    new = next((pod for pod in pods if awaits_volume(snapshot, pod)), None)
    waits = next(iter(pod_pending.starting_pods(pods)), new) or (snapshot.job if not pods else None)
    if waits is None and pods:
        return None
    waited = _since(snapshot, waits.metadata.creation_timestamp) if waits is not None else timedelta()
    return min(max(waited / 2, _MIN_INTERVAL), _LATEST_WORD).total_seconds()


def _until_progress(ran: timedelta) -> timedelta:
    return min(max(ran / 10, _MIN_INTERVAL), _LATEST_PROGRESS)


def _lasts(snapshot: Snapshot, pod: Pod) -> timedelta:
    """Return how long the download has run. If the node's clock is ahead, that is long enough."""
    fetch = pod.container(FETCH)
    ran = _since(snapshot, fetch.started_at if fetch is not None else None)
    return ran if ran >= timedelta() else _MOMENT


def _since(snapshot: Snapshot, time: str | None) -> timedelta:
    return timedelta() if time is None else snapshot.now - datetime.fromisoformat(time)
