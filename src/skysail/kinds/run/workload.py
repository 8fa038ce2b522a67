"""Jobs and pods, as far as the engine reads them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

import msgspec

from skysail.base.names import Annotation, Label
from skysail.kinds.run.types import NewestCheckpoint
from skysail.kube.objects import Object

INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
WORKER = "worker"
# It only reads what the others have saved: nobody waits for it, and days of training do not end because it cannot.
EVALUATOR = "evaluator"
DISRUPTED = "DisruptionTarget"
# The Job controller announces an end by the first of each pair, and confirms it when all pods have ended.
_COMPLETE = ("SuccessCriteriaMet", "Complete")
_FAILED = ("FailureTarget", "Failed")
_SCHEDULED = "PodScheduled"


class Read(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A part that is only read."""


class Condition(Read, frozen=True):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class JobSpec(Read, frozen=True):
    parallelism: int = 1


class JobStatus(Read, frozen=True):
    conditions: tuple[Condition, ...] = ()
    start_time: str | None = None
    completed_indexes: str = ""
    failed_indexes: str = ""


class Job(Object, frozen=True, gc=False):
    """One group of one attempt."""

    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()

    @property
    def attempt(self) -> int:
        return _number(self, Label.ATTEMPT)

    @property
    def role(self) -> str:
        return _label(self, Label.WORKER)

    @property
    def trained_spec(self) -> str:
        return (self.metadata.annotations or {}).get(Annotation.TRAINED_SPEC, "")

    @property
    def resumed_from(self) -> NewestCheckpoint | None:
        """Annotations can be changed by anybody who may change the Job: what cannot be read is not there."""
        text = (self.metadata.annotations or {}).get(Annotation.RESUMED_FROM, "null")
        try:
            return msgspec.json.decode(text, type=NewestCheckpoint | None)
        except msgspec.DecodeError:
            return None

    @property
    def is_complete(self) -> bool:
        return _first(self.status.conditions, *_COMPLETE) is not None

    @property
    def failed(self) -> Condition | None:
        return _first(self.status.conditions, *_FAILED)

    @property
    def completed(self) -> frozenset[int]:
        """Indexes that a pod has ended well for. It may be gone."""
        return _indexes(self.status.completed_indexes)

    @property
    def worn_out(self) -> frozenset[int]:
        """Indexes that failed as often as they may."""
        return _indexes(self.status.failed_indexes)

    @property
    def is_over(self) -> bool:
        """Whether it is certain that none of its pods runs any more."""
        return _first(self.status.conditions, _COMPLETE[-1], _FAILED[-1]) is not None


class Waiting(Read, frozen=True):
    reason: str = ""
    message: str = ""


class Running(Read, frozen=True):
    started_at: str | None = None


class Terminated(Read, frozen=True):
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None


class State(Read, frozen=True):
    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class Container(Read, frozen=True):
    name: str = ""
    state: State = State()
    restart_count: int = 0


class PodSpec(Read, frozen=True):
    node_name: str = ""


class PodStatus(Read, frozen=True):
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    init_container_statuses: tuple[Container, ...] = ()
    container_statuses: tuple[Container, ...] = ()


class Pod(Object, frozen=True, gc=False):
    """One rank of one attempt."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def attempt(self) -> int:
        return _number(self, Label.ATTEMPT)

    @property
    def role(self) -> str:
        return _label(self, Label.WORKER)

    @property
    def index(self) -> int:
        return _number(self, INDEX_LABEL)

    @property
    def is_orphan(self) -> bool:
        """Whether it was made for a rank, and its Job has gone without it."""
        labels = self.metadata.labels or {}
        return self.metadata.controller is None and {Label.ATTEMPT, INDEX_LABEL} <= labels.keys()

    @property
    def runs(self) -> bool:
        return self.status.phase == "Running" and not self.metadata.is_deleting

    @property
    def is_over(self) -> bool:
        return self.status.phase in {"Succeeded", "Failed"}

    @property
    def disruption(self) -> Condition | None:
        """Why it has to end although it did nothing wrong."""
        return _first(self.status.conditions, DISRUPTED)

    @property
    def was_deleted(self) -> bool:
        """Whether somebody deleted it before it had ended, however it ended then."""
        due = self.metadata.deletion_timestamp
        if due is None:
            return False
        grace = timedelta(seconds=self.metadata.deletion_grace_period_seconds or 0)
        return not self._had_ended(datetime.fromisoformat(due) - grace)

    @property
    def was_cut_off(self) -> bool:
        """Whether it had to go before its work was done. Who saves when it is told to go may well exit with 0."""
        if self.was_deleted:
            return True
        disruption = self.disruption
        if disruption is None:
            return False
        since = disruption.last_transition_time
        return not (since and self.status.phase == "Succeeded" and self._had_ended(datetime.fromisoformat(since)))

    def _had_ended(self, moment: datetime) -> bool:
        """Times are in seconds: who ended in the second in which it was told to did so for that."""
        ends = [end.finished_at for row in self.status.container_statuses if (end := row.state.terminated)]
        known = [datetime.fromisoformat(end) for end in ends if end]
        return self.is_over and bool(known) and max(known) < moment

    @property
    def unscheduled(self) -> Condition | None:
        found = next((row for row in self.status.conditions if row.type == _SCHEDULED), None)
        return found if found is not None and found.status == "False" else None

    @property
    def containers(self) -> tuple[Container, ...]:
        return (*self.status.init_container_statuses, *self.status.container_statuses)

    @property
    def exit(self) -> tuple[str, Terminated] | None:
        """The container that ended it badly, by name, and how: the first one that did."""
        bad = [(row.name, end) for row in self.containers if (end := row.state.terminated) and end.exit_code != 0]
        return min(bad, key=lambda row: row[1].finished_at or "", default=None)

    @property
    def started_at(self) -> str | None:
        """When its last container started; None while one has not."""
        starts = [_started(container) for container in self.status.container_statuses]
        known = [start for start in starts if start is not None]
        return max(known) if known and len(known) == len(starts) else None

    @property
    def restarts(self) -> int:
        return sum(container.restart_count for container in self.status.container_statuses)


def newest(pods: Iterable[Pod]) -> dict[tuple[str, int], Pod]:
    """The last pod of each rank. Names say nothing of age, and times are in seconds: who has ended came earlier."""
    in_order = sorted(pods, key=lambda pod: (pod.metadata.creation_timestamp or "", not pod.is_over, pod.metadata.name))
    return {(pod.role, pod.index): pod for pod in in_order}


def named(role: str, index: int | None) -> str:
    """A rank, as people speak of it."""
    who = {"ps": "Parameter server"}.get(role, role.capitalize())
    return who if index is None else f"{who} {index}"


def _started(container: Container) -> str | None:
    state = container.state
    if state.running is not None:
        return state.running.started_at
    return state.terminated.started_at if state.terminated is not None else None


def _first(conditions: tuple[Condition, ...], *types: str) -> Condition | None:
    """The first of these that holds; the later type says more than the earlier one."""
    holding = {row.type: row for row in conditions if row.status == "True"}
    return next((holding[type_] for type_ in reversed(types) if type_ in holding), None)


def _indexes(text: str) -> frozenset[int]:
    """`0,2-4`, as Jobs have it."""
    ranges = [part.partition("-") for part in text.split(",") if part]
    return frozenset(index for first, _, last in ranges for index in range(int(first), int(last or first) + 1))


def _label(object_: Object, label: str) -> str:
    return (object_.metadata.labels or {}).get(label, "")


def _number(object_: Object, label: str) -> int:
    """Labels can be changed by anybody who may change the object: what is no number is 0."""
    text = _label(object_, label)
    return int(text) if text.isdecimal() else 0
