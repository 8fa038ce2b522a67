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

import msgspec

from skysail.base.timestamps import timestamp
from skysail.core.workqueue import Queue
from skysail.kinds.training.api.training_job import TRAINING_JOB, TrainingJob, TrainingJobStatus
from skysail.kinds.training.plan import attempts
from skysail.kinds.training.progress.report import Report, Unusable, merged
from skysail.kube.api.objects import Key
from skysail.kube.api.rbac import Right
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import Client
from skysail.kube.client.errors import Conflict, Invalid, KubeError, NotFound

RIGHTS = (Right(TRAINING_JOB.resource, ("get",)), Right(TRAINING_JOB.resource, ("patch",), subresource="status"))

_WORKERS = 8
_TRIES = 4
# Timestamps are truncated to seconds, so eleven guarantee an interval of ten.
_PACE = timedelta(seconds=11)

log = logging.getLogger(__name__)


class _Word(msgspec.Struct, frozen=True):
    """Unwritten report of one job, by UID, and the callers that wait for the write."""

    uid: str
    report: Report
    waiting: tuple[asyncio.Future[None], ...] = ()

    def tell(self, error: Lost | Unusable | None = None) -> None:
        for each in self.waiting:
            if each.done():
                continue
            if error is None:
                each.set_result(None)
            else:
                each.set_exception(error)


class Lost(Exception):
    """The job was deleted, so the report cannot be written."""


def recorded(status: TrainingJobStatus, report: Report, now: datetime) -> TrainingJobStatus:
    """Return the status with the report merged in."""
    progress = status.progress
    if report.progress is not None:
        told = merged(progress, report.progress)
        progress = msgspec.structs.replace(told, last_updated_time=timestamp(now)) if told else None
    return msgspec.structs.replace(status, progress=progress, checkpoint=report.checkpoint or status.checkpoint)


def pause(status: TrainingJobStatus, report: Report, now: datetime) -> float:
    """Return the seconds until the report may be written.

    A checkpoint does not wait for the interval of progress: an attempt may end at any moment.
    """
    known = status.checkpoint if report.checkpoint else status.progress
    last = getattr(known, "save_time" if report.checkpoint else "last_updated_time", None)
    if last is None:
        return 0.0
    left = attempts.moment(last) + _PACE - now
    # A clock that is ahead, here or on another replica, does not prolong the delay.
    return left.total_seconds() if timedelta() < left <= _PACE else 0.0


class Records:
    """Unwritten reports of this replica. The last report of each job is always written."""

    def __init__(
        self, client: Client, jobs: Cache[TrainingJob], *, now: Callable[[], datetime], rng: random.Random
    ) -> None:
        self._client = client
        self._jobs = jobs
        self._now = now
        self._words: dict[Key, _Word] = {}
        self._queue: Queue[Key] = Queue(rng=rng, longest_delay=30.0)
        self.is_open = False

    def note(self, job: TrainingJob, report: Report) -> None:
        """Enqueue the report. A later report may be written in its place."""
        self._add(job, report)

    async def write(self, job: TrainingJob, report: Report) -> None:
        """Write the report and return afterwards.

        Raises Lost if the job was deleted, Unusable if the API server rejects the report.
        """
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._add(job, report, written)
        await written

    async def settled(self, key: Key) -> None:
        """Return when no report of this job is left to write."""
        word = self._words.get(key)
        if word is None:
            return
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._words[key] = _Word(word.uid, word.report, (*word.waiting, written))
        with contextlib.suppress(Lost, Unusable):
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
        for key in list(self._words):
            try:
                await self._write(key, in_a_hurry=True)
            except KubeError as error:
                log.warning("report lost at shutdown", extra={"object": str(key), "why": str(error)})

    def _add(self, job: TrainingJob, report: Report, *waiting: asyncio.Future[None]) -> None:
        key, uid = job.metadata.key, job.metadata.uid
        word = self._words.get(key)
        if word is not None and word.uid != uid:
            self._drop(key, word)
            word = None
        if word is not None:
            report, waiting = word.report.followed_by(report), (*word.waiting, *waiting)
        self._words[key] = _Word(uid, report, waiting)
        self._queue.add_after(key, pause(job.status, report, self._now()))

    async def _work(self) -> None:
        while True:
            key, _ = await self._queue.get()
            try:
                await self._write(key)
                self._queue.forgive(key)
            except Invalid as error:
                self._refuse(key, error)
            except KubeError as error:
                delay = self._queue.retry(key)
                extra = {"object": str(key), "why": str(error), "retry_in": round(delay, 1)}
                log.warning("report write failed, requeued", extra=extra)
            finally:
                self._queue.done(key)

    async def _write(self, key: Key, *, in_a_hurry: bool = False) -> None:
        word = self._words.get(key)
        if word is None:
            return
        for _ in range(_TRIES):
            job = self._jobs.get(key)
            if job is None or job.metadata.uid != word.uid:
                self._drop(key, word)
                return
            left = pause(job.status, word.report, self._now())
            if left and not in_a_hurry:
                self._queue.add_after(key, left)
                return
            try:
                await self._patch(job, word.report)
            except (Conflict, NotFound):
                await self._look(job)
            else:
                self._done(key, word)
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
        resource = TRAINING_JOB.resource
        self._jobs.wrote(await self._client.patch_status(resource, job, changed, TrainingJob))

    async def _look(self, job: TrainingJob) -> None:
        """Update a stale cache entry with a live read."""
        metadata = job.metadata
        try:
            found = await self._client.get(TRAINING_JOB.resource, metadata.namespace, metadata.name, TrainingJob)
        except NotFound:
            self._jobs.ended(job)
        else:
            self._jobs.wrote(found)

    def _done(self, key: Key, word: _Word) -> None:
        newest = self._words[key]
        if newest.report is word.report:
            word = self._words.pop(key)
        else:
            self._queue.add(key)
        word.tell()

    def _drop(self, key: Key, word: _Word) -> None:
        self._words.pop(key, None)
        word.tell(Lost(f"TrainingJob {key} was deleted."))

    def _refuse(self, key: Key, error: Invalid) -> None:
        """Drop a rejected report, so that it does not block later ones."""
        log.warning("report rejected, dropped", extra={"object": str(key), "why": str(error)})
        self._queue.forgive(key)
        word = self._words.pop(key, None)
        if word is not None:
            word.tell(Unusable(f"The API server rejects this report: {error.message}"))
