"""Jobs and pods of a TrainingJob, as far as the engine reads them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

import msgspec

from skysail.base.names import Annotation, Label
from skysail.kinds.training.api.training_job import NewestCheckpoint
from skysail.kube.api import workloads
from skysail.kube.api.objects import Object
from skysail.kube.api.workloads import Read, label

INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
WORKER = "worker"
# It only reads what the others have saved: nobody waits for it, and days of training do not end because it cannot.
EVALUATOR = "evaluator"


class JobSpec(Read, frozen=True):
    parallelism: int = 1


class JobStatus(workloads.JobStatus, frozen=True):
    start_time: str | None = None
    completed_indexes: str = ""
    failed_indexes: str = ""


class Job(workloads.Job, frozen=True, gc=False):
    """One group of one attempt."""

    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()

    @property
    def attempt(self) -> int:
        return _number(self, Label.ATTEMPT)

    @property
    def role(self) -> str:
        return label(self, Label.WORKER)

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
    def completed(self) -> frozenset[int]:
        """Indexes that a pod has ended well for. It may be gone."""
        return _indexes(self.status.completed_indexes)

    @property
    def worn_out(self) -> frozenset[int]:
        """Indexes that failed as often as they may."""
        return _indexes(self.status.failed_indexes)


class Pod(workloads.Pod, frozen=True, gc=False):
    """One rank of one attempt."""

    @property
    def attempt(self) -> int:
        return _number(self, Label.ATTEMPT)

    @property
    def role(self) -> str:
        return label(self, Label.WORKER)

    @property
    def index(self) -> int:
        return _number(self, INDEX_LABEL)

    @property
    def is_orphan(self) -> bool:
        """Whether it was made for a rank, and its Job has gone without it."""
        labels = self.metadata.labels or {}
        return self.metadata.controller is None and {Label.ATTEMPT, INDEX_LABEL} <= labels.keys()

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


def newest(pods: Iterable[Pod]) -> dict[tuple[str, int], Pod]:
    """The last pod of each rank. Names say nothing of age, and times are in seconds: who has ended came earlier."""
    in_order = sorted(pods, key=lambda pod: (pod.metadata.creation_timestamp or "", not pod.is_over, pod.metadata.name))
    return {(pod.role, pod.index): pod for pod in in_order}


def named(role: str, index: int | None) -> str:
    """A rank, as people speak of it."""
    who = {"ps": "Parameter server"}.get(role, role.capitalize())
    return who if index is None else f"{who} {index}"


def _indexes(text: str) -> frozenset[int]:
    """`0,2-4`, as Jobs have it."""
    ranges = [part.partition("-") for part in text.split(",") if part]
    return frozenset(index for first, _, last in ranges for index in range(int(first), int(last or first) + 1))


def _number(object_: Object, name: str) -> int:
    """Labels can be changed by anybody who may change the object: what is no number is 0."""
    text = label(object_, name)
    return int(text) if text.isdecimal() else 0
