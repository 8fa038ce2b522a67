"""Log watcher: finds lines about checkpoints and progress in the logs of pods that may print them. Runs in the leader.

Stateless: a new watcher reads each log from the checkpoint in the status, or from the beginning. So it finds lines that
were printed while no operator ran, if the pod still exists.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Mapping
from datetime import datetime

import msgspec

from skysail.base.backoff import delay_bound
from skysail.base.names import EventReason
from skysail.base.timestamps import timestamp
from skysail.core.actions import Event
from skysail.core.controller import EventRecorder
from skysail.kinds.training.api.training_job import TRAINING_JOB, TrainingJob
from skysail.kinds.training.caches import Caches, training_jobs
from skysail.kinds.training.children.pod_template import CONTAINER
from skysail.kinds.training.children.replica_groups import is_elastic, replica_groups
from skysail.kinds.training.children.volumes import checkpoint_directory
from skysail.kinds.training.objects import Pod
from skysail.kinds.training.plan.planner import FINISHED_PHASES
from skysail.kinds.training.progress.report import (
    MARK,
    PROGRESS_MARK,
    InvalidReport,
    Report,
    parse_log_line,
    parse_progress_line,
    report,
    to_status,
)
from skysail.kinds.training.progress.status_writer import StatusWriter
from skysail.kube.api.objects import IndexKey, Key
from skysail.kube.api.resources import POD
from skysail.kube.client.client import Client
from skysail.kube.client.errors import KubeError, NotFound
from skysail.kube.client.transport import Stream

_MARKS = (MARK, PROGRESS_MARK)
_MAX_LINE_LENGTH = 65536
_MAX_BACKOFF = 30.0
# A log ends shortly after its container. A node that does not answer must not delay the next attempt for longer.
_TIMEOUT_SECONDS = 15.0
_MAX_ATTEMPTS = 3
# Limits concurrent log requests, because a new leader opens the logs of all jobs.
_OPENINGS = 32

log = logging.getLogger(__name__)


class LogLine(msgspec.Struct, frozen=True):
    """Line of a log with its timestamp."""

    time: str
    text: str


class _Following(msgspec.Struct, frozen=True):
    """Watched log of one pod. When the task is done, the log was read to its end."""

    key: Key
    job: IndexKey
    task: asyncio.Task[None]


class CheckpointLogWatcher:
    """Log watcher with one task per pod, by the UID of the pod."""

    def __init__(
        self,
        client: Client,
        caches: Caches,
        status_writer: StatusWriter,
        recorder: EventRecorder,
        cloud_nodes: Mapping[str, str] | None = None,
    ) -> None:
        self._client = client
        self._caches = caches
        self._status_writer = status_writer
        self._recorder = recorder
        self._cloud_nodes = cloud_nodes or {}
        self._tasks: asyncio.TaskGroup | None = None
        self._begun = False
        self._followed: dict[str, _Following] = {}
        self._asked: dict[IndexKey, float] = {}
        self._openings = asyncio.Semaphore(_OPENINGS)
        caches.pods.subscribe(self._changed)

    async def run(self) -> None:
        """Watch logs until cancelled."""
        for cache in (self._caches.training, self._caches.pods):
            await cache.synced.wait()
        async with asyncio.TaskGroup() as self._tasks:
            for pod in self._caches.pods.all():
                self._follow(pod)
            self._begun = True
            await asyncio.Event().wait()

    def is_drained(self, job: IndexKey) -> bool:
        """Return whether all checkpoints printed by finished pods of the job are written, or the wait timed out.

        Never blocks: the caller asks again later, so that a dead node delays only its own jobs.
        """
        now = asyncio.get_running_loop().time()
        if self._begun and not self._is_reading(job):
            self._asked.pop(job, None)
            return True
        if now - self._asked.setdefault(job, now) < _TIMEOUT_SECONDS:
            return False
        del self._asked[job]
        return True

    def _is_reading(self, job: IndexKey) -> bool:
        """Return whether the log of a finished pod is still being read."""
        for pod in self._caches.pods.by("training", job):
            self._follow(pod)
        rows = [row for row in self._followed.values() if row.job == job and self._has_ended(row.key)]
        return any(not row.task.done() for row in rows)

    def _changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None:
            self._follow(new)
        elif old is not None and (row := self._followed.get(old.metadata.uid)) is not None:
            # A connection to a dead node may stay open for ever.
            asyncio.get_running_loop().call_later(_TIMEOUT_SECONDS, row.task.cancel)
            row.task.add_done_callback(lambda _: self._followed.pop(old.metadata.uid, None))

    def _follow(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        job = self._job(pod)
        if self._tasks is None or uid in self._followed or job is None or not may_report(job, pod, self._cloud_nodes):
            return
        task = self._tasks.create_task(self._read_to_end(pod, _known(job, pod)), name=f"log of {pod.metadata.key}")
        self._followed[uid] = _Following(pod.metadata.key, job.metadata.identity, task)

    async def _read_to_end(self, pod: Pod, since: str) -> None:
        quiet = 0
        while (job := self._job(pod)) is not None:
            # Checked before the log is opened: if the pod has finished, this read is complete.
            has_ended, previous = self._has_ended(pod.metadata.key), since
            try:
                async for log_line in self._log(pod, since):
                    since = log_line.time or since
                    if any(mark in log_line.text for mark in _MARKS):
                        self._enqueue_report(pod, log_line)
                if has_ended:
                    break
            except NotFound:
                break
            except KubeError as error:
                log.debug("pod log not readable, retried", extra={"pod": str(pod.metadata.key), "why": str(error)})
            quiet = 0 if since != previous else quiet + 1
            if has_ended and quiet == _MAX_ATTEMPTS:
                break
            await asyncio.sleep(delay_bound(quiet, first=0.5, longest=_MAX_BACKOFF))
        if job is not None:
            await self._status_writer.wait_flushed(job.metadata.key)

    async def _log(self, pod: Pod, since: str) -> AsyncIterator[LogLine]:
        """Yield the log from `since` to its end."""
        query = {"container": CONTAINER, "follow": "true", "timestamps": "true"}
        if since:
            query["sinceTime"] = since
        path = POD.path(pod.metadata.namespace, pod.metadata.name, "log")
        async with self._openings:
            opened = await self._client.stream(path, query)
        async with opened as stream:
            async for log_line in lines(stream):
                yield log_line

    def _enqueue_report(self, pod: Pod, log_line: LogLine) -> None:
        job = self._job(pod)
        if job is None:
            return
        is_progress = PROGRESS_MARK in log_line.text
        try:
            found = self._report(job, pod, log_line)
            if found is not None and log_line.time:
                self._status_writer.enqueue(job, found)
        except InvalidReport as error:
            reason = EventReason.INVALID_PROGRESS if is_progress else EventReason.INVALID_CHECKPOINT
            what = "progress line" if is_progress else "checkpoint"
            message = f"Pod {pod.metadata.name} printed an invalid {what}. {error}"
            self._recorder.record(TRAINING_JOB.resource, job, Event(reason, message, warning=True))

    def _report(self, job: TrainingJob, pod: Pod, log_line: LogLine) -> Report | None:
        provider = self._cloud_nodes.get(pod.spec.node_name, "")
        body = parse_progress_line(log_line.text)
        if body is not None:
            return report(job, body, log_line.time, provider)
        saved_checkpoint = parse_log_line(log_line.text)
        if saved_checkpoint is None:
            return None
        return Report(checkpoint=to_status(job, saved_checkpoint, log_line.time, provider))

    def _job(self, pod: Pod) -> TrainingJob | None:
        found = [job for key in training_jobs(pod) for job in self._caches.training.by("uid", key)]
        return next(iter(found), None)

    def _has_ended(self, key: Key) -> bool:
        pod = self._caches.pods.get(key)
        return pod is None or pod.is_finished


def may_report(job: TrainingJob, pod: Pod, cloud_nodes: Collection[str] = ()) -> bool:
    """Return whether this pod may print reports: rank 0, or any elastic worker, because their ranks are unknown.

    A pod at a cloud can print its progress even if it saves no checkpoints.
    """
    has_lines = bool(checkpoint_directory(job.spec)) or pod.spec.node_name in cloud_nodes
    if not has_lines or pod.started_at is None or job.status.phase in FINISHED_PHASES:
        return False
    if job.status.attempts and pod.attempt < job.status.attempts[-1].number:
        return False
    first = replica_groups(job.spec)[0].role
    return pod.role == first and (pod.index == 0 or is_elastic(job.spec))


async def lines(stream: Stream) -> AsyncIterator[LogLine]:
    """Yield each line with a mark, and the last line of each chunk for its timestamp."""
    rest = b""
    async for chunk in stream:
        *whole, rest = (rest + chunk).split(b"\n")
        rest = rest[:_MAX_LINE_LENGTH]
        for place, raw in enumerate(whole, 1):
            if place == len(whole) or any(mark.encode() in raw for mark in _MARKS):
                yield _printed(raw)
    if rest:
        yield _printed(rest)


def _printed(raw: bytes) -> LogLine:
    time, _, text = raw.decode(errors="replace").partition(" ")
    try:
        return LogLine(timestamp(datetime.fromisoformat(time)), text)
    except ValueError:
        return LogLine("", text)


def _known(job: TrainingJob, pod: Pod) -> str:
    """Return the time from which to read the log: the newest checkpoint, if this pod saved it."""
    saved = job.status.checkpoint.save_time if job.status.checkpoint else None
    return saved if saved and pod.started_at and saved >= pod.started_at else ""
