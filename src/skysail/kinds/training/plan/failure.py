"""Failure of an attempt: the pod that failed first, or a pod that was disrupted. Pure."""

from __future__ import annotations

import re

import msgspec

from skysail.base import terminal_text
from skysail.kinds.training.api.training_job import Cause, Failure, TrainingJobSpec
from skysail.kinds.training.children.frameworks import FRAMEWORKS, Scope
from skysail.kinds.training.children.replica_groups import groups, is_elastic
from skysail.kinds.training.objects import EVALUATOR, WORKER, Job, Pod, named, newest
from skysail.kinds.training.plan import completion
from skysail.kinds.training.snapshot import Run
from skysail.kube.api.workloads import DISRUPTED

# Disruption reasons that mean that the node was lost, not that the pod was evicted.
_NODE_LOST = {"DeletionByTaintManager", "DeletionByPodGC"}
_BY_POLICY = "PodFailurePolicy"
_POD_IN_MESSAGE = re.compile(r"[Pp]od \S+?/(?P<pod>\S+)(?: for index (?P<index>\d+))?")
_LONGEST_LOG = 4096
_OUT_OF_MEMORY = "OOMKilled"
# Pod reason of Skysail's nodes: the pod ended with the node agent.
_LOST = "Lost"
_DELETED = "Deleted"
# Exit codes above this are 128 plus the number of a signal.
_SIGNALS = 128
_SIGTERM = _SIGNALS + 15


class Mishap(msgspec.Struct, frozen=True):
    """Cause of a failed attempt. `pod` is the pod whose log is read. `is_final`: its own retries are exhausted."""

    cause: Cause
    failure: Failure
    pod: Pod | None = None
    is_final: bool = False


def ended_badly(spec: TrainingJobSpec, run: Run) -> Mishap | None:
    """Return why the attempt failed, or None if it may still succeed."""
    if completion.is_about_to_succeed(spec, run):
        return None
    return _disrupted(spec, run) or _failed(spec, run) or _deleted(spec, run) or _lost_rendezvous(spec, run)


def alone(spec: TrainingJobSpec, run: Run) -> list[Failure]:
    """Return failures of individually restarted pods, oldest first. The attempt continues without them."""
    pods = [pod for pod in run.pods if pod.status.phase == "Failed" and _comes_back_alone(spec, pod)]
    blamed = [pod for pod in pods if pod.disruption is None and not pod.was_deleted]
    return [with_log(_described(pod), None) for pod in sorted(blamed, key=_by_blame)]


def with_log(failure: Failure, log: str | None) -> Failure:
    """Return the failure with the last lines of the log; if unknown, with the termination message of the pod."""
    text = terminal_text.shown(failure.message) if log is None or not log.strip() else log.strip("\n")
    return msgspec.structs.replace(failure, message=terminal_text.ending(text, _LONGEST_LOG))


def sentence(failure: Failure, cause: Cause | None = "Failed") -> str:
    """Return a sentence about the failure, with the fix if the reason has one."""
    who = named(failure.role, failure.index)
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
        return f"{who} {how} ({failure.reason}): raise resources.limits.memory."
    return f"{who} {how}." if failure.reason in {"", "Error"} else f"{who} {how} ({failure.reason})."


def _disrupted(spec: TrainingJobSpec, run: Run) -> Mishap | None:
    """Return the first disrupted pod of a gang: its peers fail only because it is missing."""
    for pod in _in_order(run.pods):
        disruption = pod.disruption
        if disruption is not None and pod.was_cut_off and not _comes_back_alone(spec, pod):
            is_lost = disruption.reason in _NODE_LOST or pod.status.reason == _LOST
            reason = _LOST if pod.status.reason == _LOST else disruption.reason
            failure = _described(pod, reason=reason, message=disruption.message)
            return Mishap("NodeLost" if is_lost else "Preempted", failure)
    return None


def _comes_back_alone(spec: TrainingJobSpec, pod: Pod) -> bool:
    """Return whether the pod restarts alone while the others continue."""
    if is_elastic(spec) and pod.role == WORKER and pod.index == completion.RENDEZVOUS:
        return False
    return _scope(spec, pod.role) == "index"


def _failed(spec: TrainingJobSpec, run: Run) -> Mishap | None:
    """Return the failure of a Job. If the pod is deleted, the message of the Job controller describes it."""
    told = [(job, _told(job)) for job in run.jobs if job.failed is not None and job.role != EVALUATOR]
    if not told:
        return None
    pushed = next((failure for job, failure in told if failure.reason == DISRUPTED), None)
    if pushed is not None:
        return Mishap("Preempted", pushed)
    culprit = next(iter(_suspects(spec, run)), None)
    if culprit is None:
        job, failure = told[0]
        return Mishap("Failed", failure, is_final=_scope(spec, job.role) == "index")
    if culprit.was_deleted:
        return Mishap("Deleted", _described(culprit, reason=_DELETED))
    return Mishap("Failed", _described(culprit), culprit, is_final=_scope(spec, culprit.role) == "index")


def _suspects(spec: TrainingJobSpec, run: Run) -> list[Pod]:
    """Return failed pods that were not replaced, oldest failure first: later ones are often consequences."""
    jobs = {job.role: job for job in run.jobs}
    failed = [pod for pod in newest(run.pods).values() if pod.status.phase == "Failed" and pod.role != EVALUATOR]
    return sorted((pod for pod in failed if _is_suspect(spec, jobs.get(pod.role), pod)), key=_by_blame)


def _is_suspect(spec: TrainingJobSpec, job: Job | None, pod: Pod) -> bool:
    """Return whether the pod may have failed the attempt.

    An individually restarted pod fails the attempt only when its retries are exhausted. Disruptions never count.
    """
    if _scope(spec, pod.role) == "gang":
        return True
    if job is None or job.failed is None or pod.disruption is not None:
        return False
    return not job.worn_out or pod.index in job.worn_out


def _by_blame(pod: Pod) -> tuple[str, bool, int, str, int]:
    """Sort by time of failure; in the same second, killed pods come first and deleted pods last."""
    if pod.exit is None:
        return "~", pod.was_deleted, 0, pod.role, pod.index
    exit_ = pod.exit[1]
    is_killed = exit_.exit_code > _SIGNALS and exit_.exit_code != _SIGTERM
    weight = 0 if exit_.reason == _OUT_OF_MEMORY else 1 if is_killed else 2
    return exit_.finished_at or "", pod.was_deleted, weight, pod.role, pod.index


def _deleted(spec: TrainingJobSpec, run: Run) -> Mishap | None:
    """Return a deleted pod of a gang.

    The Job controller also deletes pods after a failure, which does not count here.
    """
    pods = newest(run.pods).values()
    failing = {pod.role for pod in pods if pod.status.phase == "Failed" and not pod.was_deleted}
    failing -= {job.role for job in run.jobs if job.is_complete}
    for pod in sorted(pods, key=lambda pod: (pod.metadata.deletion_timestamp or "", pod.role, pod.index)):
        if pod.was_deleted and pod.role not in failing and not _comes_back_alone(spec, pod):
            return Mishap("Deleted", _described(pod, reason=_DELETED))
    return None


def _lost_rendezvous(spec: TrainingJobSpec, run: Run) -> Mishap | None:
    """Return the failure of worker 0 of an elastic job, because the other workers cannot meet without it."""
    if not is_elastic(spec):
        return None
    hosts = [pod for pod in run.pods if (pod.role, pod.index) == (WORKER, completion.RENDEZVOUS)]
    lost = sorted((pod for pod in hosts if pod.status.phase == "Failed"), key=_by_blame)
    return Mishap("Failed", _described(lost[0]), lost[0]) if lost else None


def _in_order(pods: tuple[Pod, ...]) -> list[Pod]:
    return sorted(pods, key=lambda pod: (pod.role, pod.index, pod.metadata.name))


def _described(pod: Pod, *, reason: str = "", message: str = "") -> Failure:
    exit_ = pod.exit[1] if pod.exit else None
    return Failure(
        role=pod.role,
        index=pod.index,
        pod=pod.metadata.name,
        node=pod.spec.node_name,
        exit_code=exit_.exit_code if exit_ else None,
        reason=reason or pod.status.reason or (exit_.reason if exit_ else ""),
        message=message or (exit_.message if exit_ else "") or pod.status.message,
    )


def _told(job: Job) -> Failure:
    """Return the failure as the Job controller describes it."""
    failed = job.failed
    assert failed is not None, "only a failed Job has a failure"
    found = _POD_IN_MESSAGE.search(failed.message)
    index = found["index"] if found else None
    is_pushed = failed.reason == _BY_POLICY and DISRUPTED in failed.message
    return Failure(
        role=job.role,
        index=None if index is None else int(index),
        pod=found["pod"] if found else "",
        reason=DISRUPTED if is_pushed else failed.reason,
        message=failed.message,
    )


def _scope(spec: TrainingJobSpec, role: str) -> Scope:
    """Return what restarts if a pod of the role fails.

    A role that was removed from the spec counts as part of the gang.
    """
    group = next((group for group in groups(spec) if group.role == role), None)
    return "gang" if group is None else FRAMEWORKS[spec.framework].scope(spec, group.role)
