"""Logs of the pods of a TrainingJob: once, or followed over restarts and attempts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime

import msgspec

from skysail.base.names import Label
from skysail.cli.cluster import synced_cache
from skysail.core import pod_pending
from skysail.kinds.training.api.training_job import TRAINING_JOB, TrainingJob
from skysail.kinds.training.children.pod_template import CONTAINER
from skysail.kinds.training.objects import Pod
from skysail.kinds.training.plan import attempts
from skysail.kinds.training.plan.planner import FINISHED_PHASES
from skysail.kube.api.resources import POD
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import Client
from skysail.kube.client.errors import Invalid, NotFound, ReplyLost, ServerFault, Throttled, Unreachable

# Delay before a broken stream or a pod without an end state is retried.
_RETRY_SECONDS = 1.0
# Attempts for a finished pod whose node does not answer: the node may be gone for good.
_MAX_ATTEMPTS = 10

LinePrinter = Callable[[Pod, str], None]
Moment = tuple[datetime, str]


class LogSelection(msgspec.Struct, frozen=True):
    """Selection of pods: one rank as (role, index), one attempt, or all."""

    rank: tuple[str, int] | None = None
    attempt: int | None = None

    def takes(self, pod: Pod) -> bool:
        return self.rank in {None, (pod.role, pod.index)} and self.attempt in {None, pod.attempt}

    def is_over(self, job: TrainingJob | None) -> bool:
        """Return whether no further pod of this selection can appear."""
        if job is None or job.status.phase in FINISHED_PHASES:
            return True
        known = None if self.attempt is None else attempts.find(job.status, self.attempt)
        return known is not None and known.end_time is not None


async def pods(client: Client, job: TrainingJob) -> tuple[Pod, ...]:
    """Return the existing pods, ordered by attempt and rank."""
    return tuple(sorted(await client.list_objects(POD, job.metadata.namespace, _selector(job), Pod), key=_order))


async def read(client: Client, pod: Pod, tail: int | None = None) -> AsyncIterator[str]:
    """Yield the log of the pod so far."""
    query = {} if tail is None else {"tailLines": str(tail)}
    async for _, line in _lines(client, pod, query):
        yield line


def has_begun(pod: Pod) -> bool:
    """Return whether the pod can have a log."""
    states = [container.state for container in pod.status.container_statuses if container.name == CONTAINER]
    return any(state.running is not None or state.terminated is not None for state in states)


def not_started(pod: Pod, command: str) -> str:
    """Return why the pod has no log yet, such as the progress of its image; if unknown, the command that may know."""
    who = f"{pod.role}-{pod.index}"
    reason = pod_pending.pending_reason(pod, who)
    return f"{who} has not started: `{command}` shows the pending reason." if reason is None else reason.message


async def follow(
    client: Client,
    job: TrainingJob,
    selection: LogSelection,
    print_line: LinePrinter,
    *,
    tail: int | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> None:
    """Print every line of the selected pods as it arrives, until no more can arrive.

    `report` gets why a pod has not started, when that changes.
    """
    await _LogFollower(client, job, selection, print_line, tail, report).run()


class _LogFollower:
    def __init__(
        self,
        client: Client,
        job: TrainingJob,
        selection: LogSelection,
        print_line: LinePrinter,
        tail: int | None,
        report: Callable[[str], None],
    ) -> None:
        self._client = client
        self._job = job
        self._log_selection = selection
        self._print_line = print_line
        self._tail = tail
        self._report = report
        self._reported: dict[str, str] = {}
        self._changed = asyncio.Event()
        self._tails: dict[str, asyncio.Task[None]] = {}
        self._pods = Cache(POD, Pod, selector=_selector(job))
        self._jobs = Cache(
            TRAINING_JOB.resource, TrainingJob, selector={"fieldSelector": f"metadata.name={job.metadata.name}"}
        )

    async def run(self) -> None:
        namespace = self._job.metadata.namespace
        self._pods.subscribe(lambda _, __: self._changed.set())
        self._jobs.subscribe(lambda _, __: self._changed.set())
        async with (
            synced_cache(self._client, self._jobs, namespace),
            synced_cache(self._client, self._pods, namespace),
            asyncio.TaskGroup() as tasks,
        ):
            while not self._log_selection.is_over(self._seen()):
                self._changed.clear()
                self._begin(tasks, self._pods.all())
                await self._changed.wait()
            # The end of the job may arrive before its pods: find a pod that ran briefly here.
            self._begin(tasks, list(await pods(self._client, self._job)))

    def _seen(self) -> TrainingJob | None:
        """Return None if the job is deleted or was replaced by another one of the same name."""
        seen = self._jobs.get(self._job.metadata.key)
        return seen if seen is not None and seen.metadata.uid == self._job.metadata.uid else None

    def _begin(self, tasks: asyncio.TaskGroup, pods: list[Pod]) -> None:
        for pod in sorted(filter(self._log_selection.takes, pods), key=_order):
            if not has_begun(pod):
                self._report_pending(pod)
            elif pod.metadata.uid not in self._tails:
                self._tails[pod.metadata.uid] = tasks.create_task(self._follow(pod))

    def _report_pending(self, pod: Pod) -> None:
        """Report why the pod has not started, if the reason is known and new."""
        reason = pod_pending.pending_reason(pod, f"{pod.role}-{pod.index}")
        if reason is not None and self._reported.get(pod.metadata.uid) != reason.message:
            self._reported[pod.metadata.uid] = reason.message
            self._report(reason.message)

    async def _follow(self, pod: Pod) -> None:
        """Follow one pod to its end. A broken stream resumes after the last received line."""
        position, tries = _Position(), 0
        query = {} if self._tail is None else {"tailLines": str(self._tail)}
        while True:
            # Read the state before the stream, so that the stream contains everything up to that state.
            has_ended = self._has_ended(pod)
            try:
                async for moment, line in _lines(self._client, pod, {**query, "follow": "true", "timestamps": "true"}):
                    if position.is_new(moment):
                        self._print_line(pod, line)
            except (NotFound, Invalid):
                return
            except (ReplyLost, ServerFault, Throttled, Unreachable):
                tries += has_ended
                has_ended = tries == _MAX_ATTEMPTS
            if has_ended:
                return
            await asyncio.sleep(_RETRY_SECONDS)
            query = position.resume() or query

    def _has_ended(self, pod: Pod) -> bool:
        now = self._pods.get(pod.metadata.key)
        return now is None or now.metadata.uid != pod.metadata.uid or now.is_finished


class _Position:
    """Position in the log of a pod. Lines with the same timestamp are counted."""

    def __init__(self) -> None:
        self._moment: Moment | None = None
        self._lines = 0
        self._repeated: int | None = None

    def resume(self) -> dict[str, str]:
        """Return the query that resumes here. It is exact to a second only, so some lines arrive twice."""
        if self._moment is None:
            return {}
        self._repeated = self._lines
        return {"sinceTime": self._moment[0].strftime("%Y-%m-%dT%H:%M:%SZ")}

    def is_new(self, moment: Moment | None) -> bool:
        if moment is None:
            return True
        if self._repeated is not None and self._moment is not None:
            if moment < self._moment:
                return False
            if moment == self._moment and self._repeated:
                self._repeated -= 1
                return False
            self._repeated = None
        self._lines = self._lines + 1 if moment == self._moment else 1
        self._moment = moment
        return True


async def _lines(client: Client, pod: Pod, query: dict[str, str]) -> AsyncIterator[tuple[Moment | None, str]]:
    """Yield complete lines, with their timestamps if requested."""
    path = POD.path(pod.metadata.namespace, pod.metadata.name, "log")
    rest = b""
    async with await client.stream(path, {"container": CONTAINER, **query}) as stream:
        async for chunk in stream:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield _read(line, stamped="timestamps" in query)
    if rest:
        yield _read(rest, stamped="timestamps" in query)


def _read(line: bytes, *, stamped: bool) -> tuple[Moment | None, str]:
    text = line.decode(errors="replace").rstrip("\r")
    stamp, _, content = text.partition(" ")
    moment = _moment(stamp) if stamped else None
    return (None, text) if moment is None else (moment, content)


def _moment(stamp: str) -> Moment | None:
    """Parse a timestamp to the nanosecond, which datetime cannot hold. Returns None if it is invalid."""
    try:
        time = datetime.fromisoformat(stamp).astimezone(UTC)
    except ValueError:
        return None
    fraction = stamp.partition(".")[2].rstrip("Z").partition("+")[0].partition("-")[0]
    return time.replace(microsecond=0), fraction.ljust(9, "0")


def _selector(job: TrainingJob) -> dict[str, str]:
    return {"labelSelector": f"{Label.TRAINING_JOB_UID}={job.metadata.uid}"}


def _order(pod: Pod) -> tuple[int, str, int, str]:
    return pod.attempt, pod.role, pod.index, pod.metadata.creation_timestamp or ""
