"""What ended an attempt: the pod that failed first, or one that had to go although it did nothing wrong. Pure."""

from __future__ import annotations

import re

import msgspec

from skysail.kinds.run.frameworks import FRAMEWORKS, Scope
from skysail.kinds.run.groups import groups, is_elastic
from skysail.kinds.run.snapshot import Run
from skysail.kinds.run.types import Cause, Failure, TrainingJobSpec
from skysail.kinds.run.workload import Condition, Job, Pod, named

# The reasons by which Kubernetes tells that it was the node and not somebody's wish.
_NODE_LOST = {"DeletionByTaintManager", "DeletionByPodGC"}
_BY_POLICY = "PodFailurePolicy"
_DISRUPTED = "DisruptionTarget"
_POD_IN_MESSAGE = re.compile(r"[Pp]od \S+?/(?P<pod>\S+)(?: for index (?P<index>\d+))?")
_RENDEZVOUS = 0
# It only reads what the others have saved: days of training do not end because it cannot.
_EVALUATOR = "evaluator"
_LONGEST_LOG = 4096
_OUT_OF_MEMORY = "OOMKilled"


class Mishap(msgspec.Struct, frozen=True):
    """`pod` is the one whose log tells more. `is_final`: it came back as often as it may, alone."""

    cause: Cause
    failure: Failure
    pod: Pod | None = None
    is_final: bool = False


def ended_badly(spec: TrainingJobSpec, run: Run) -> Mishap | None:
    """None while the attempt may still succeed."""
    disrupted = _disrupted(spec, run)
    if disrupted is not None:
        return disrupted
    for job in run.jobs:
        if job.failed is not None and job.role != _EVALUATOR:
            return _failed(spec, run, job, job.failed)
    host = _lost_rendezvous(spec, run)
    return None if host is None else Mishap("Failed", _described(host), host)


def with_log(failure: Failure, log: str | None) -> Failure:
    """With the last lines of the pod's log; where they are not known, with what the pod said at its end."""
    text = failure.message if log is None or not log.strip() else log.strip("\n")
    return msgspec.structs.replace(failure, message=text[-_LONGEST_LOG:])


def sentence(failure: Failure, cause: Cause | None = "Failed") -> str:
    """What happened, for people; with the fix where the reason has one."""
    who = named(failure.role, failure.index)
    where = f" (pod {failure.pod} on node {failure.node})" if failure.node else ""
    if cause == "NodeLost":
        return f"The node of {who}{where} was lost."
    if cause == "Preempted":
        return f"{who}{where} had to give way ({failure.reason})."
    code = "" if failure.exit_code is None else f" with exit code {failure.exit_code}"
    reason = f" ({failure.reason})" if failure.reason not in {"", "Error"} else ""
    fix = " It needs more memory: raise resources.limits.memory." if failure.reason == _OUT_OF_MEMORY else ""
    return f"{who}{where} failed{code}{reason}.{fix}"


def _disrupted(spec: TrainingJobSpec, run: Run) -> Mishap | None:
    """A pod that is about to go ends its gang, whatever becomes of the others: they fail because it is missing."""
    for pod in _in_order(run.pods):
        disruption = pod.disruption
        if disruption is not None and (not _comes_back_alone(spec, pod) or _belongs_to_failed(run, pod)):
            failure = _described(pod, reason=disruption.reason, message=disruption.message)
            return Mishap("NodeLost" if disruption.reason in _NODE_LOST else "Preempted", failure)
    return None


def _comes_back_alone(spec: TrainingJobSpec, pod: Pod) -> bool:
    """Whether the others can do without it meanwhile."""
    if is_elastic(spec) and pod.role == "worker" and pod.index == _RENDEZVOUS:
        return False
    return _scope(spec, pod.role) == "index"


def _belongs_to_failed(run: Run, pod: Pod) -> bool:
    return pod.role != _EVALUATOR and any(job.failed is not None and job.role == pod.role for job in run.jobs)


def _failed(spec: TrainingJobSpec, run: Run, job: Job, failed: Condition) -> Mishap:
    """The pod may be gone; what the Job controller says of it stays."""
    if failed.reason == _BY_POLICY and _DISRUPTED in failed.message:
        return Mishap("Preempted", _told(job, failed))
    culprit = next((pod for pod in _by_end(run.pods) if pod.role == job.role), None)
    is_final = _scope(spec, job.role) == "index"
    if culprit is None:
        return Mishap("Failed", _told(job, failed), is_final=is_final)
    return Mishap("Failed", _described(culprit), culprit, is_final)


def _lost_rendezvous(spec: TrainingJobSpec, run: Run) -> Pod | None:
    """Elastic workers meet at worker 0: without it nobody comes back."""
    if not is_elastic(spec):
        return None
    hosts = (pod for pod in _by_end(run.pods) if (pod.role, pod.index) == ("worker", _RENDEZVOUS))
    return next(hosts, None)


def _by_end(pods: tuple[Pod, ...]) -> list[Pod]:
    """Those that failed, the first one first: the others often fail because of it."""
    failed = [pod for pod in _in_order(pods) if pod.status.phase == "Failed"]
    return sorted(failed, key=lambda pod: pod.exit[1].finished_at or "" if pod.exit else "~")


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


def _told(job: Job, failed: Condition) -> Failure:
    found = _POD_IN_MESSAGE.search(failed.message)
    index = found["index"] if found else None
    return Failure(
        role=job.role,
        index=None if index is None else int(index),
        pod=found["pod"] if found else "",
        reason=_DISRUPTED if _DISRUPTED in failed.message else failed.reason,
        message=failed.message,
    )


def _scope(spec: TrainingJobSpec, role: str) -> Scope:
    """A role that the job does not have any more is part of the gang."""
    group = next((group for group in groups(spec) if group.role == role), None)
    return "gang" if group is None else FRAMEWORKS[spec.framework].scope(spec, group.role)
