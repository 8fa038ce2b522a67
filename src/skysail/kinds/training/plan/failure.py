"""Failure of an attempt: the pod that failed first, or a pod that was disrupted. Pure."""

from __future__ import annotations

import re

import msgspec

from skysail.base import terminal_text
from skysail.base.names import Reason
from skysail.kinds.training.api.training_job import Cause, Failure, TrainingJobSpec
from skysail.kinds.training.children.frameworks import FRAMEWORKS, RestartScope
from skysail.kinds.training.children.replica_groups import is_elastic, replica_groups
from skysail.kinds.training.objects import EVALUATOR, WORKER, Job, Pod, display_name, latest_by_rank
from skysail.kinds.training.plan import completion
from skysail.kinds.training.plan.field_names import TRAINING_JOB_FIELDS, FieldNames
from skysail.kinds.training.snapshot import AttemptState
from skysail.kube.api.workloads import DISRUPTED

# Disruption reasons that mean that the node was lost, not that the pod was evicted.
_NODE_LOST = {"DeletionByTaintManager", "DeletionByPodGC"}
_BY_POLICY = "PodFailurePolicy"
_POD_IN_MESSAGE = re.compile(r"[Pp]od \S+?/(?P<pod>\S+)(?: for index (?P<index>\d+))?")
_MAX_LOG_LENGTH = 4096
_OUT_OF_MEMORY = "OOMKilled"
# Pod reason of Skysail's nodes: the pod ended with the node agent.
_LOST = "Lost"
_DELETED = "Deleted"
# Exit codes above this are 128 plus the number of a signal.
_SIGNALS = 128
_SIGTERM = _SIGNALS + 15


class AttemptFailure(msgspec.Struct, frozen=True):
    """Cause of a failed attempt. `pod` is the pod whose log is read. `is_final`: its own retries are exhausted."""

    cause: Cause
    failure: Failure
    pod: Pod | None = None
    is_final: bool = False


def find_failure(spec: TrainingJobSpec, attempt: AttemptState) -> AttemptFailure | None:
    """Return why the attempt failed, or None if it may still succeed."""
    if completion.is_about_to_succeed(spec, attempt):
        return None
    return (
        _disrupted(spec, attempt)
        or _failed(spec, attempt)
        or _deleted(spec, attempt)
        or _lost_rendezvous(spec, attempt)
    )


def individually_restarted(spec: TrainingJobSpec, attempt: AttemptState) -> list[Failure]:
    """Return failures of individually restarted pods, oldest first. The attempt continues without them."""
    pods = [pod for pod in attempt.pods if pod.status.phase == "Failed" and _comes_back_alone(spec, pod)]
    blamed = [pod for pod in pods if pod.disruption is None and not pod.was_deleted]
    return [with_log(_described(pod), None) for pod in sorted(blamed, key=_blame_order)]


def with_log(failure: Failure, log: str | None) -> Failure:
    """Return the failure with the last lines of the log; if unknown, with the termination message of the pod."""
    text = terminal_text.strip_control(failure.message) if log is None or not log.strip() else log.strip("\n")
    return msgspec.structs.replace(failure, message=terminal_text.tail(text, _MAX_LOG_LENGTH))


def message(failure: Failure, cause: Cause | None = "Failed", fields: FieldNames = TRAINING_JOB_FIELDS) -> str:
    """Return a sentence about the failure, with the fix if the reason has one. `fields`: names for the fix."""
    who = display_name(failure.role, failure.index)
    if failure.node:
        who = f"{who} (pod {failure.pod} on node {failure.node})"
    if cause == "NodeLost" and failure.reason == _LOST:
        return f"{who} was lost because its node was stopped or restarted."
    if cause == "NodeLost":
        return f"{who} was lost with its node."
    if cause == "Preempted":
        return f"{who} was preempted or evicted ({failure.reason})."
    if cause == "Deleted":
        return f"{who} was deleted."
    how = "failed" if failure.exit_code is None else f"failed with exit code {failure.exit_code}"
    if failure.reason == _OUT_OF_MEMORY:
        return f"{who} {how} ({failure.reason}): raise {fields.memory}."
    return f"{who} {how}." if failure.reason in {"", "Error"} else f"{who} {how} ({failure.reason})."


def _disrupted(spec: TrainingJobSpec, attempt: AttemptState) -> AttemptFailure | None:
    """Return the first disrupted pod of a gang: its peers fail only because it is missing."""
    for pod in _in_order(attempt.pods):
        disruption = pod.disruption
        if disruption is not None and pod.was_interrupted and not _comes_back_alone(spec, pod):
            is_lost = disruption.reason in _NODE_LOST or pod.status.reason == _LOST
            reason = _LOST if pod.status.reason == _LOST else disruption.reason
            failure = _described(pod, reason=reason, message=disruption.message)
            return AttemptFailure("NodeLost" if is_lost else "Preempted", failure)
    return None


def _comes_back_alone(spec: TrainingJobSpec, pod: Pod) -> bool:
    """Return whether the pod restarts alone while the others continue."""
    if is_elastic(spec) and pod.role == WORKER and pod.index == completion.RENDEZVOUS:
        return False
    return _scope(spec, pod.role) == "index"


def _failed(spec: TrainingJobSpec, attempt: AttemptState) -> AttemptFailure | None:
    """Return the failure of a Job. If the pod is deleted, the message of the Job controller describes it."""
    failures = [(job, _job_failure(job)) for job in attempt.jobs if job.failed is not None and job.role != EVALUATOR]
    if not failures:
        return None
    pushed = next((failure for job, failure in failures if failure.reason == DISRUPTED), None)
    if pushed is not None:
        return AttemptFailure("Preempted", pushed)
    culprit = next(iter(_failed_pods(spec, attempt)), None)
    if culprit is None:
        job, failure = failures[0]
        return AttemptFailure("Failed", failure, is_final=_scope(spec, job.role) == "index")
    if _ended_with_gang(culprit) and not all(job.is_over for job, _ in failures):
        return None  # the end of the rank that failed first is not written yet
    if culprit.was_deleted and not any(_ended_with_gang(pod) for pod in attempt.pods):
        return AttemptFailure("Deleted", _described(culprit, reason=_DELETED))
    return AttemptFailure("Failed", _described(culprit), culprit, is_final=_scope(spec, culprit.role) == "index")


def _failed_pods(spec: TrainingJobSpec, attempt: AttemptState) -> list[Pod]:
    """Return failed pods that were not replaced, oldest failure first: later ones are often consequences."""
    jobs = {job.role: job for job in attempt.jobs}
    failed = [
        pod for pod in latest_by_rank(attempt.pods).values() if pod.status.phase == "Failed" and pod.role != EVALUATOR
    ]
    return sorted((pod for pod in failed if _is_suspect(spec, jobs.get(pod.role), pod)), key=_blame_order)


def _is_suspect(spec: TrainingJobSpec, job: Job | None, pod: Pod) -> bool:
    """Return whether the pod may have failed the attempt.

    An individually restarted pod fails the attempt only when its retries are exhausted. Disruptions never count.
    """
    if _scope(spec, pod.role) == "gang":
        return True
    if job is None or job.failed is None or pod.disruption is not None:
        return False
    return not job.exhausted_indexes or pod.index in job.exhausted_indexes


def _blame_order(pod: Pod) -> tuple[bool, str, bool, int, str, int]:
    """Sort by time of failure; in the same second, killed pods come first and deleted pods last.

    Pods that a cloud ended because another rank failed come after all others, whatever their time.
    """
    if pod.termination is None:
        return False, "~", pod.was_deleted, 0, pod.role, pod.index
    exit_ = pod.termination[1]
    is_killed = exit_.exit_code > _SIGNALS and exit_.exit_code != _SIGTERM
    weight = 0 if exit_.reason == _OUT_OF_MEMORY else 1 if is_killed else 2
    return _ended_with_gang(pod), exit_.finished_at or "", pod.was_deleted, weight, pod.role, pod.index


def _ended_with_gang(pod: Pod) -> bool:
    """Return whether the cloud of the pod says that it ended because another rank of its gang had failed."""
    return pod.termination is not None and pod.termination[1].reason == Reason.GANG_FAILED


def _deleted(spec: TrainingJobSpec, attempt: AttemptState) -> AttemptFailure | None:
    """Return a deleted pod of a gang.

    The Job controller also deletes pods after a failure, which does not count here.
    """
    pods = latest_by_rank(attempt.pods).values()
    failing = {pod.role for pod in pods if pod.status.phase == "Failed" and not pod.was_deleted}
    failing -= {job.role for job in attempt.jobs if job.is_complete}
    for pod in sorted(pods, key=lambda pod: (pod.metadata.deletion_timestamp or "", pod.role, pod.index)):
        if pod.was_deleted and pod.role not in failing and not _comes_back_alone(spec, pod):
            return AttemptFailure("Deleted", _described(pod, reason=_DELETED))
    return None


def _lost_rendezvous(spec: TrainingJobSpec, attempt: AttemptState) -> AttemptFailure | None:
    """Return the failure of worker 0 of an elastic job, because the other workers cannot meet without it."""
    if not is_elastic(spec):
        return None
    hosts = [pod for pod in attempt.pods if (pod.role, pod.index) == (WORKER, completion.RENDEZVOUS)]
    lost = sorted((pod for pod in hosts if pod.status.phase == "Failed"), key=_blame_order)
    if lost and _ended_with_gang(lost[0]):
        lost = sorted((pod for pod in attempt.pods if pod.status.phase == "Failed"), key=_blame_order)
    return AttemptFailure("Failed", _described(lost[0]), lost[0]) if lost else None


def _in_order(pods: tuple[Pod, ...]) -> list[Pod]:
    return sorted(pods, key=lambda pod: (pod.role, pod.index, pod.metadata.name))


def _described(pod: Pod, *, reason: str = "", message: str = "") -> Failure:
    exit_ = pod.termination[1] if pod.termination else None
    return Failure(
        role=pod.role,
        index=pod.index,
        pod=pod.metadata.name,
        node=pod.spec.node_name,
        exit_code=exit_.exit_code if exit_ else None,
        reason=reason or pod.status.reason or (exit_.reason if exit_ else ""),
        message=message or (exit_.message if exit_ else "") or pod.status.message,
    )


def _job_failure(job: Job) -> Failure:
    """Return the failure as the Job controller describes it."""
    failed = job.failed
    assert failed is not None, "only a failed Job has a failure"
    match = _POD_IN_MESSAGE.search(failed.message)
    index = match["index"] if match else None
    is_pushed = failed.reason == _BY_POLICY and DISRUPTED in failed.message
    return Failure(
        role=job.role,
        index=None if index is None else int(index),
        pod=match["pod"] if match else "",
        reason=DISRUPTED if is_pushed else failed.reason,
        message=failed.message,
    )


def _scope(spec: TrainingJobSpec, role: str) -> RestartScope:
    """Return what restarts if a pod of the role fails.

    A role that was removed from the spec counts as part of the gang.
    """
    replica_group = next((replica_group for replica_group in replica_groups(spec) if replica_group.role == role), None)
    return "gang" if replica_group is None else FRAMEWORKS[spec.framework].restart_scope(spec, replica_group.role)
