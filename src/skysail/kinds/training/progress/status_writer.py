"""Writes what pods reported into the status of their TrainingJobs, each job at most once in ten seconds.

Every replica writes what it was told, whether or not it leads: a report is a fact and no decision, and to hand it on
would only be one more thing that can fail. Nobody undoes the other's words, because the leader writes a status as it
was read or not at all, and so does this one.
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
# Times in the status are cut to seconds, so that one more must pass before ten have.
_PACE = timedelta(seconds=11)

log = logging.getLogger(__name__)


class _Word(msgspec.Struct, frozen=True):
    """What is not written yet of one job, known by its UID, and who waits for it to be."""

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
    """The job is gone, so there is nothing to write to."""


def recorded(status: TrainingJobStatus, report: Report, now: datetime) -> TrainingJobStatus:
    """The status with a report in it."""
    progress = status.progress
    if report.progress is not None:
        told = merged(progress, report.progress)
        progress = msgspec.structs.replace(told, last_updated_time=timestamp(now)) if told else None
    return msgspec.structs.replace(status, progress=progress, checkpoint=report.checkpoint or status.checkpoint)


def pause(status: TrainingJobStatus, report: Report, now: datetime) -> float:
    """Seconds until this may be written. A checkpoint waits for no progress: an attempt may end at any moment."""
    known = status.checkpoint if report.checkpoint else status.progress
    last = getattr(known, "save_time" if report.checkpoint else "last_updated_time", None)
    if last is None:
        return 0.0
    left = attempts.moment(last) + _PACE - now
    # A clock that is ahead, here or there, makes nobody wait for longer.
    return left.total_seconds() if timedelta() < left <= _PACE else 0.0


class Records:
    """What was reported to this replica and is not written yet. The last word of each job always is."""

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
        """Write this soon; or something that was reported later, where that comes first."""
        self._add(job, report)

    async def write(self, job: TrainingJob, report: Report) -> None:
        """Returns when it is written. Raises Lost, and Unusable where the API server will never take it."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._add(job, report, written)
        await written

    async def settled(self, key: Key) -> None:
        """Returns when nothing of this job is left to write."""
        word = self._words.get(key)
        if word is None:
            return
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._words[key] = _Word(word.uid, word.report, (*word.waiting, written))
        with contextlib.suppress(Lost, Unusable):
            await written

    async def run(self) -> None:
        """Until cancelled."""
        self.is_open = True
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(_WORKERS):
                    tasks.create_task(self._work())
        finally:
            self.is_open = False
            self._queue.close()

    async def flush(self) -> None:
        """Write all that is left, at once: the process ends."""
        for key in list(self._words):
            try:
                await self._write(key, in_a_hurry=True)
            except KubeError as error:
                log.warning("last report not written", extra={"object": str(key), "why": str(error)})

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
                log.warning("report not written", extra=extra)
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
        raise Conflict(409, "Conflict", "others write to it all the time")

    async def _patch(self, job: TrainingJob, report: Report) -> None:
        status = recorded(job.status, report, self._now())
        if status == job.status:
            return
        changed = {}
        if report.progress is not None:
            changed["progress"] = msgspec.to_builtins(status.progress)
        if report.checkpoint is not None:
            # A patch leaves what it does not name, and the step of another checkpoint is wrong for this one.
            changed["checkpoint"] = {"step": None, "claimName": None, **msgspec.to_builtins(report.checkpoint)}
        resource = TRAINING_JOB.resource
        self._jobs.wrote(await self._client.patch_status(resource, job, changed, TrainingJob))

    async def _look(self, job: TrainingJob) -> None:
        """The cache is behind: read what is there now."""
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
        word.tell(Lost(f"TrainingJob {key} is gone."))

    def _refuse(self, key: Key, error: Invalid) -> None:
        """What cannot be written must not stand in the way of what is reported later."""
        log.warning("report dropped", extra={"object": str(key), "why": str(error)})
        self._queue.forgive(key)
        word = self._words.pop(key, None)
        if word is not None:
            word.tell(Unusable(f"The API server does not take this report: {error.message}"))
