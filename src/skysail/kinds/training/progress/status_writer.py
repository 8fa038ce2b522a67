"""Writer of reports into the status of TrainingJobs, at most once in ten seconds per job.

Every replica writes the reports it receives, leader or not: a report is an observation, not a decision, and forwarding
it would add a failure mode. Optimistic locking keeps the writers from overwriting each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec

from skysail.base.timestamps import timestamp
from skysail.core.workqueue import WorkQueue
from skysail.kinds.training.api.training_job import TRAINING_JOB, LatestCheckpoint, TrainingJob, TrainingJobStatus
from skysail.kinds.training.children.volumes import checkpoint_claim_name
from skysail.kinds.training.plan import attempts, retention
from skysail.kinds.training.progress.report import InvalidReport, Report, merge
from skysail.kube.api.objects import Key, Object
from skysail.kube.api.rbac import PolicyRule
from skysail.kube.api.resources import PERSISTENT_VOLUME_CLAIM
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import Client
from skysail.kube.client.errors import Conflict, Invalid, KubeError, NotFound

POLICY_RULES = (
    PolicyRule(TRAINING_JOB.resource, ("get",)),
    PolicyRule(TRAINING_JOB.resource, ("patch",), subresource="status"),
    PolicyRule(PERSISTENT_VOLUME_CLAIM, ("get", "patch")),
)

_WORKERS = 8
_MAX_ATTEMPTS = 4
# Timestamps are truncated to seconds, so eleven guarantee an interval of ten.
_PACE = timedelta(seconds=11)

log = logging.getLogger(__name__)


class _Pending(msgspec.Struct, frozen=True):
    """Unwritten report of one job, by UID, and the callers that wait for the write."""

    uid: str
    report: Report
    waiting: tuple[asyncio.Future[None], ...] = ()

    def resolve(self, error: JobGone | InvalidReport | None = None) -> None:
        for each in self.waiting:
            if each.done():
                continue
            if error is None:
                each.set_result(None)
            else:
                each.set_exception(error)


class JobGone(Exception):
    """The job was deleted, so the report cannot be written."""


def recorded(status: TrainingJobStatus, report: Report, now: datetime) -> TrainingJobStatus:
    """Return the status with the report merged in."""
    progress = status.progress
    if report.progress is not None:
        previous = merge(progress, report.progress)
        progress = msgspec.structs.replace(previous, last_updated_time=timestamp(now)) if previous else None
    return msgspec.structs.replace(status, progress=progress, checkpoint=report.checkpoint or status.checkpoint)


def pause(status: TrainingJobStatus, report: Report, now: datetime) -> float:
    """Return the seconds until the report may be written.

    A checkpoint does not wait for the interval of progress: an attempt may end at any moment.
    """
    known = status.checkpoint if report.checkpoint else status.progress
    last = getattr(known, "save_time" if report.checkpoint else "last_updated_time", None)
    if last is None:
        return 0.0
    remaining = attempts.parse_time(last) + _PACE - now
    # A clock that is ahead, here or on another replica, does not prolong the delay.
    return remaining.total_seconds() if timedelta() < remaining <= _PACE else 0.0


class StatusWriter:
    """Unwritten reports of this replica. The last report of each job is always written."""

    def __init__(
        self, client: Client, jobs: Cache[TrainingJob], *, now: Callable[[], datetime], rng: random.Random
    ) -> None:
        self._client = client
        self._jobs = jobs
        self._now = now
        self._pendings: dict[Key, _Pending] = {}
        self._queue: WorkQueue[Key] = WorkQueue(rng=rng, longest_delay=30.0)
        self.is_open = False

    def enqueue(self, job: TrainingJob, report: Report) -> None:
        """Enqueue the report. A later report may be written in its place."""
        self._add(job, report)

    async def write(self, job: TrainingJob, report: Report) -> None:
        """Write the report and return afterwards.

        Raises JobGone if the job was deleted, Unusable if the API server rejects the report.
        """
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._add(job, report, written)
        await written

    async def wait_flushed(self, key: Key) -> None:
        """Return when no report of this job is left to write."""
        pending = self._pendings.get(key)
        if pending is None:
            return
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pendings[key] = _Pending(pending.uid, pending.report, (*pending.waiting, written))
        with contextlib.suppress(JobGone, InvalidReport):
            await written

    async def run(self) -> None:
        """Run the workers until cancelled."""
        self.is_open = True
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(_WORKERS):
                    tasks.create_task(self._work())
        finally:
            self.is_open = False
            self._queue.close()

    async def flush(self) -> None:
        """Write all remaining reports at once, because the process is stopping."""
        for key in list(self._pendings):
            try:
                await self._write(key, in_a_hurry=True)
            except KubeError as error:
                log.warning("report lost at shutdown", extra={"object": str(key), "why": str(error)})

    def _add(self, job: TrainingJob, report: Report, *waiting: asyncio.Future[None]) -> None:
        key, uid = job.metadata.key, job.metadata.uid
        pending = self._pendings.get(key)
        if pending is not None and pending.uid != uid:
            self._drop(key, pending)
            pending = None
        if pending is not None:
            report, waiting = pending.report.followed_by(report), (*pending.waiting, *waiting)
        self._pendings[key] = _Pending(uid, report, waiting)
        self._queue.add_after(key, pause(job.status, report, self._now()))

    async def _work(self) -> None:
        while True:
            key, _ = await self._queue.get()
            try:
                await self._write(key)
                self._queue.forget(key)
            except Invalid as error:
                self._refuse(key, error)
            except KubeError as error:
                delay = self._queue.add_rate_limited(key)
                extra = {"object": str(key), "why": str(error), "retry_in": round(delay, 1)}
                log.warning("report write failed, requeued", extra=extra)
            finally:
                self._queue.done(key)

    async def _write(self, key: Key, *, in_a_hurry: bool = False) -> None:
        pending = self._pendings.get(key)
        if pending is None:
            return
        for _ in range(_MAX_ATTEMPTS):
            job = self._jobs.get(key)
            if job is None or job.metadata.uid != pending.uid:
                self._drop(key, pending)
                return
            seconds_left = pause(job.status, pending.report, self._now())
            if seconds_left and not in_a_hurry:
                self._queue.add_after(key, seconds_left)
                return
            try:
                await self._patch(job, pending.report)
            except (Conflict, NotFound):
                await self._look(job)
            else:
                self._done(key, pending)
                return
        raise Conflict(409, "Conflict", "the object changed during every write")

    async def _patch(self, job: TrainingJob, report: Report) -> None:
        status = recorded(job.status, report, self._now())
        if status == job.status:
            return
        changed = {}
        if report.progress is not None:
            changed["progress"] = msgspec.to_builtins(status.progress)
        if report.checkpoint is not None:
            # A merge patch keeps absent fields, and the step of another checkpoint would be wrong.
            changed["checkpoint"] = {"step": None, "claimName": None, **msgspec.to_builtins(report.checkpoint)}
            changed |= await self._retain(job, report.checkpoint)
        resource = TRAINING_JOB.resource
        self._jobs.record_write(await self._client.patch_status(resource, job, changed, TrainingJob))

    async def _retain(self, job: TrainingJob, saved: LatestCheckpoint) -> dict[str, Any]:
        """Make the PVC outlive the job, if it shall, before the checkpoint is recorded. Returns the fields to write."""
        metadata = job.metadata
        if saved.provider:
            return {}
        pvc = await self._client.find(PERSISTENT_VOLUME_CLAIM, metadata.namespace, checkpoint_claim_name(job), Object)
        patch = None if pvc is None else retention.pvc_patch(job, pvc, saved)
        if pvc is None or patch is None:
            return {}
        name = pvc.metadata.name
        await self._client.merge_patch(PERSISTENT_VOLUME_CLAIM, metadata.namespace, name, patch, Object)
        volume = retention.volume_after(job, saved)
        return {} if volume is None else {"checkpointVolume": msgspec.to_builtins(volume)}

    async def _look(self, job: TrainingJob) -> None:
        """Update a stale cache entry with a live read."""
        metadata = job.metadata
        try:
            training_job = await self._client.get(TRAINING_JOB.resource, metadata.namespace, metadata.name, TrainingJob)
        except NotFound:
            self._jobs.mark_deleted(job)
        else:
            self._jobs.record_write(training_job)

    def _done(self, key: Key, pending: _Pending) -> None:
        newest = self._pendings[key]
        if newest.report is pending.report:
            pending = self._pendings.pop(key)
        else:
            self._queue.add(key)
        pending.resolve()

    def _drop(self, key: Key, pending: _Pending) -> None:
        self._pendings.pop(key, None)
        pending.resolve(JobGone(f"TrainingJob {key} was deleted."))

    def _refuse(self, key: Key, error: Invalid) -> None:
        """Drop a rejected report, so that it does not block later ones."""
        log.warning("report rejected, dropped", extra={"object": str(key), "why": str(error)})
        self._queue.forget(key)
        pending = self._pendings.pop(key, None)
        if pending is not None:
            pending.resolve(InvalidReport(f"The API server rejects this report: {error.message}"))
