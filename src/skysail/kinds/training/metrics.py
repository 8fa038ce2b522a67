"""Metrics of TrainingJobs, served by the leader from its caches."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping

from skysail.base.metrics import Metrics
from skysail.base.names import Condition, Metric
from skysail.core import conditions
from skysail.kinds.training.api.training_job import TRAINING_JOB, Attempt, TrainingJob, first_number
from skysail.kinds.training.caches import Caches
from skysail.kinds.training.children.replica_groups import replica_groups
from skysail.kinds.training.objects import WORKER
from skysail.kinds.training.plan import attempts

_LOSS = ("loss", "train_loss")
_ACCURACY = ("accuracy", "eval_accuracy")
_GPU_UTILIZATION = ("gpu_utilization", "gpu_utilization_percent")

Figures = Mapping[tuple[str, ...], float]


class TrainingMetrics:
    """Counters of status transitions. Each transition is written once, so the replicas together count it once."""

    def __init__(self, caches: Caches, leads: Callable[[], bool]) -> None:
        self._caches = caches
        self._leads = leads
        self._created: Counter[tuple[str, ...]] = Counter()
        self._completed: Counter[tuple[str, ...]] = Counter()
        self._failed: Counter[tuple[str, ...]] = Counter()
        self._attempts: Counter[tuple[str, ...]] = Counter()
        self._lost: defaultdict[tuple[str, ...], float] = defaultdict(float)
        caches.training.subscribe(self._changed)

    def register(self, metrics: Metrics) -> None:
        named, each = ("namespace",), ("namespace", "name")
        metrics.add_labelled_callback(Metric.TRAINING_JOBS_CREATED, named, lambda: self._created)
        metrics.add_labelled_callback(Metric.TRAINING_JOBS_COMPLETED, named, lambda: self._completed)
        metrics.add_labelled_callback(Metric.TRAINING_JOBS_FAILED, ("namespace", "reason"), lambda: self._failed)
        metrics.add_labelled_callback(Metric.TRAINING_JOB_ATTEMPTS, ("namespace", "cause"), lambda: self._attempts)
        metrics.add_labelled_callback(Metric.TRAINING_JOB_LOST, named, lambda: self._lost)
        metrics.add_labelled_callback(Metric.TRAINING_JOB_STATE, (*each, "state"), self._states)
        metrics.add_labelled_callback(Metric.TRAINING_JOB_STALLED, each, lambda: self._each(_stalled))
        metrics.add_labelled_callback(Metric.TRAINING_JOB_GPUS, named, lambda: self._allocated(gpus=True))
        metrics.add_labelled_callback(Metric.TRAINING_JOB_WORKERS, named, lambda: self._allocated(gpus=False))
        metrics.add_labelled_callback(Metric.TRAINING_JOB_PROGRESS, each, lambda: self._each(_percent))
        metrics.add_labelled_callback(Metric.TRAINING_JOB_EPOCH, each, lambda: self._each(_epoch))
        metrics.add_labelled_callback(
            Metric.TRAINING_JOB_LOSS, each, lambda: self._each(lambda job: _reported_metric(job, _LOSS))
        )
        metrics.add_labelled_callback(
            Metric.TRAINING_JOB_ACCURACY, each, lambda: self._each(lambda job: _reported_metric(job, _ACCURACY))
        )
        metrics.add_labelled_callback(Metric.TRAINING_JOB_GPU_UTILIZATION, each, lambda: self._each(_used))
        kind = TRAINING_JOB.resource.kind
        metrics.add_legacy_names(kind, time=Metric.TRAINING_JOB_PASS_TIME, errors=Metric.TRAINING_JOB_PASS_ERRORS)

    def _changed(self, old: TrainingJob | None, new: TrainingJob | None) -> None:
        if old is None or new is None or not self._leads():
            return
        namespace = new.metadata.namespace
        if old.status.phase != new.status.phase:
            self._created[namespace,] += old.status.phase is None
            self._completed[namespace,] += new.status.phase == "Succeeded"
            if new.status.phase == "Failed":
                self._failed[namespace, _reason(new)] += 1
        for attempt in _ended(old, new):
            self._attempts[namespace, str(attempt.cause)] += 1
            self._lost[namespace,] += lost_training_seconds(new, attempt)

    def _jobs(self) -> list[TrainingJob]:
        return self._caches.training.all() if self._leads() else []

    def _states(self) -> Figures:
        return {(*_named(job), job.status.phase or "Pending"): 1.0 for job in self._jobs()}

    def _each(self, figure: Callable[[TrainingJob], float | None]) -> Figures:
        return {_named(job): value for job in self._jobs() if (value := figure(job)) is not None}

    def _allocated(self, *, gpus: bool) -> Figures:
        """Sum over pods that have a node and have not finished."""
        found: Counter[tuple[str, ...]] = Counter()
        for job in self._jobs():
            held: dict[str, int] = {
                replica_group.role: replica_group.gpus if gpus else int(replica_group.role == WORKER)
                for replica_group in replica_groups(job.spec)
            }
            pods = self._caches.pods.by("training", job.metadata.identity)
            found[job.metadata.namespace,] += sum(
                held.get(pod.role, 0) for pod in pods if pod.spec.node_name and not pod.is_finished
            )
        return found


def lost_training_seconds(job: TrainingJob, attempt: Attempt) -> float:
    """Return the seconds that an attempt trained since its last checkpoint: that work is repeated."""
    if attempt.cause == "Succeeded" or attempt.run_time is None or attempt.end_time is None:
        return 0.0
    saved = job.status.checkpoint.save_time if job.status.checkpoint else None
    since = max(attempts.parse_time(attempt.run_time), attempts.parse_time(saved or attempt.run_time))
    return max(0.0, (attempts.parse_time(attempt.end_time) - since).total_seconds())


def _ended(old: TrainingJob, new: TrainingJob) -> list[Attempt]:
    known = {attempt.number for attempt in old.status.attempts if attempt.end_time is not None}
    return [attempt for attempt in new.status.attempts if attempt.end_time is not None and attempt.number not in known]


def _named(job: TrainingJob) -> tuple[str, str]:
    return job.metadata.namespace, job.metadata.name


def _reason(job: TrainingJob) -> str:
    condition = conditions.find_condition(job.status.conditions, Condition.SUCCEEDED)
    return condition.reason if condition else ""


def _stalled(job: TrainingJob) -> float | None:
    condition = conditions.find_condition(job.status.conditions, Condition.STALLED)
    return 1.0 if condition is not None and condition.status == "True" else None


def _percent(job: TrainingJob) -> float | None:
    return job.status.progress.percent if job.status.progress else None


def _epoch(job: TrainingJob) -> float | None:
    return job.status.progress.epoch if job.status.progress else None


def _used(job: TrainingJob) -> float | None:
    return _reported_metric(job, _GPU_UTILIZATION)


def _reported_metric(job: TrainingJob, names: tuple[str, ...]) -> float | None:
    return first_number(job.status.progress.metrics if job.status.progress else (), names)
