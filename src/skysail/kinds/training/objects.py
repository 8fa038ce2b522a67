"""Jobs and pods of a TrainingJob, with the fields that the engine reads."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from skysail.base import untrusted_json
from skysail.base.names import Annotation, Label
from skysail.base.untrusted_json import InvalidJson
from skysail.kinds.training.api.training_job import LatestCheckpoint
from skysail.kube.api import workloads
from skysail.kube.api.objects import Object
from skysail.kube.api.workloads import PartialStruct, label, oldest_first

INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
WORKER = "worker"
# An evaluator only reads checkpoints, so its failure never fails the job.
EVALUATOR = "evaluator"


class JobSpec(PartialStruct, frozen=True):
    parallelism: int = 1


class JobStatus(workloads.JobStatus, frozen=True):
    start_time: str | None = None
    completed_indexes: str = ""
    failed_indexes: str = ""


class Job(workloads.Job, frozen=True, gc=False):
    """Job of one role in one attempt."""

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
        return (self.metadata.annotations or {}).get(Annotation.ATTEMPT_SPEC_HASH, "")

    @property
    def resumed_from(self) -> LatestCheckpoint | None:
        """Return the checkpoint in the annotation.

        Returns None if the annotation is invalid, because users can edit it.
        """
        text = (self.metadata.annotations or {}).get(Annotation.RESUMED_FROM, "")
        try:
            return untrusted_json.decode(text, LatestCheckpoint) if text else None
        except InvalidJson:
            return None

    @property
    def completed(self) -> frozenset[int]:
        """Return the indexes for which a pod succeeded. The pod may be deleted."""
        return _indexes(self.status.completed_indexes)

    @property
    def exhausted_indexes(self) -> frozenset[int]:
        """Return the indexes whose retries are exhausted."""
        return _indexes(self.status.failed_indexes)


class Pod(workloads.Pod, frozen=True, gc=False):
    """Pod of one rank in one attempt."""

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
        """Return whether the pod belongs to a rank and its Job was deleted without it."""
        labels = self.metadata.labels or {}
        return self.metadata.controller is None and {Label.ATTEMPT, INDEX_LABEL} <= labels.keys()

    @property
    def was_deleted(self) -> bool:
        """Return whether the pod was deleted before it finished, whatever its exit code."""
        due = self.metadata.deletion_timestamp
        if due is None:
            return False
        grace = timedelta(seconds=self.metadata.deletion_grace_period_seconds or 0)
        return not self._had_ended(datetime.fromisoformat(due) - grace)

    @property
    def was_interrupted(self) -> bool:
        """Return whether the pod was deleted or disrupted before it finished.

        A program that saves on SIGTERM may exit 0.
        """
        if self.was_deleted:
            return True
        disruption = self.disruption
        if disruption is None:
            return False
        since = disruption.last_transition_time
        return not (since and self.status.phase == "Succeeded" and self._had_ended(datetime.fromisoformat(since)))

    def _had_ended(self, moment: datetime) -> bool:
        """Return whether the pod had finished before `moment`.

        Times have a resolution of one second: an exit in the same second counts as caused by the signal.
        """
        ends = [end.finished_at for container in self.status.container_statuses if (end := container.state.terminated)]
        known = [datetime.fromisoformat(end) for end in ends if end]
        return self.is_finished and bool(known) and max(known) < moment


def latest_by_rank(pods: Iterable[Pod]) -> dict[tuple[str, int], Pod]:
    """Return the newest pod of each rank."""
    return {(pod.role, pod.index): pod for pod in oldest_first(pods)}


def display_name(role: str, index: int | None) -> str:
    """Return the display name of a rank, such as `Worker 0`."""
    who = {"ps": "Parameter server"}.get(role, role.capitalize())
    return who if index is None else f"{who} {index}"


def _indexes(text: str) -> frozenset[int]:
    """Parse the index list of a Job, such as `0,2-4`."""
    ranges = [part.partition("-") for part in text.split(",") if part]
    return frozenset(index for first, _, last in ranges for index in range(int(first), int(last or first) + 1))


def _number(object_: Object, name: str) -> int:
    """Return the number in a label.

    Returns 0 if the label is not a number, because users can edit it.
    """
    text = label(object_, name)
    return int(text) if text.isdecimal() else 0
