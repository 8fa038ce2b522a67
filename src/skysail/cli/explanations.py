"""Explanation of every kind but TrainingJobs, for `skysail why`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from skysail.base import terminal_text
from skysail.claims.types import CloudInstance
from skysail.core import pod_pending
from skysail.kinds.serving.api.types import MLModel, ModelDeployment
from skysail.kinds.training.api.training_job import TrainingJob
from skysail.kube.api.workloads import Job, Pod, Terminated

_LOG_LINES = 10


def model(found: ModelDeployment | MLModel) -> Iterator[str]:
    status, meta = found.status, found.metadata
    kind = "ModelDeployment" if isinstance(found, ModelDeployment) else "MLModel"
    servers = f"{status.ready_replicas} of {status.replicas} servers ready"
    yield f"{meta.namespace}/{meta.name}: {status.phase or 'not seen yet'} ({kind}, {servers})"
    yield f"Why: {status.message or 'no status reported yet.'}"
    if status.failure is not None:
        failure = status.failure
        yield f"Last failure, in step {failure.step}: {failure.message or failure.reason}"
        if failure.log:
            yield "Its last words:"
            lines = terminal_text.strip_control(failure.log).splitlines()[-_LOG_LINES:]
            yield from (f"  {line}" for line in lines)
    if status.phase == "Ready" and status.failure is None:
        yield f"What to do: Nothing. `skysail predict {meta.name} -n {meta.namespace} -d '[[1.0]]'` asks the model."
    else:
        command = f"kubectl describe {kind.lower()} {meta.name} -n {meta.namespace}"
        yield f"What to do: Correct what the message names; `{command}` shows more."


def pod(found: Pod, log: Sequence[str] = ()) -> Iterator[str]:
    """Explain a pod. `log`: the last lines of the container that failed."""
    meta, status = found.metadata, found.status
    node = f"on node {found.spec.node_name}" if found.spec.node_name else "without a node"
    yield f"{meta.namespace}/{meta.name}: {status.phase or 'not seen yet'} (Pod {node})"
    reason = _pending_message(found)
    if reason:
        yield f"Why: {reason}"
    failure = failed_container(found)
    if failure is not None:
        container, ended = failure
        text = f": {terminal_text.strip_control(ended.message).strip()}" if ended.message.strip() else ""
        yield f"Container {container} failed: {ended.reason}, exit code {ended.exit_code}{text}"
    if failure is not None and log:
        yield "Its last log lines:"
        yield from (f"  {line}" for line in log)


def failed_container(found: Pod) -> tuple[str, Terminated] | None:
    """Return name and end of the container that failed first, also if it waits for its next run.

    Returns None if no container failed.
    """
    again = (
        (container.name, container.last_state.terminated)
        for container in found.containers
        if container.state.waiting is not None and container.last_state.terminated is not None
    )
    return found.termination or next(((name, end) for name, end in again if end.exit_code), None)


def _pending_message(found: Pod) -> str:
    """Return why the pod does not run. Empty if no reason is known."""
    reason = pod_pending.pending_reason(found, f"Pod {found.metadata.name}")
    return "" if reason is None else reason.message


def headline(kind: str, found: Any, training: TrainingJob) -> str:
    """Return the first line about an object that a TrainingJob runs."""
    meta = found.metadata
    phase = getattr(found.status, "phase", None) or training.status.phase or "not seen yet"
    return f"{meta.namespace}/{meta.name}: {phase} ({kind}, run by TrainingJob {training.metadata.name})"


def job(found: Job, pods: Sequence[Pod], log: Sequence[str] = ()) -> Iterator[str]:
    """Explain a Job of Kubernetes by its condition and its newest pod, whose log these lines end."""
    meta, end = found.metadata, found.success or found.failed
    phase = "Succeeded" if found.success else "Failed" if found.failed else "Running" if pods else "Pending"
    yield f"{meta.namespace}/{meta.name}: {phase} (Job, {len(pods)} pods)"
    if end is not None and end.message:
        yield f"Why: {end.message}"
    elif not pods:
        yield "Why: the Job has no pods. Check whether it is suspended, and `kubectl describe job` for errors."
    if pods:
        yield from pod(pods[-1], log)


def claim(found: CloudInstance) -> Iterator[str]:
    status, spec = found.status, found.spec
    price = "" if status.usd_per_hour is None else f", {status.usd_per_hour} USD per hour"
    owner = f"{spec.owner.kind} {spec.owner.namespace}/{spec.owner.name}"
    yield f"{found.metadata.name}: {status.state or 'not seen yet'} (claim at {spec.provider} for {owner}{price})"
    for condition in status.conditions:
        if condition.message:
            yield f"{condition.type} is {condition.status}: {condition.message}"
    if status.exit is not None:
        yield f"Exit: {status.exit.reason}, code {status.exit.code}. {status.exit.message}".rstrip()


def other(kind: str, found: Any) -> Iterator[str]:
    """Explain an object of any other kind by its phase and its conditions."""
    meta, status = found.metadata, found.status
    name = f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
    phase = getattr(status, "phase", None) or getattr(status, "state", None)
    yield f"{name}: {phase} ({kind})" if phase else f"{name} ({kind})"
    conditions = [condition for condition in getattr(status, "conditions", ()) if condition.message]
    seen: set[str] = set()
    for condition in conditions:
        if condition.message not in seen:
            yield f"{condition.type} is {condition.status}: {condition.message}"
        seen.add(condition.message)
    if not conditions:
        yield "Why: no status reported yet."
