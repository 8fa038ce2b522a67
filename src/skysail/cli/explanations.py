"""Explanation of every kind but TrainingJobs, for `skysail why`. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from skysail.base import terminal_text
from skysail.claims.types import CloudInstance
from skysail.core import pod_pending
from skysail.kinds.serving.api.types import MLModel, ModelDeployment
from skysail.kube.api.workloads import Pod

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
        yield f"What to do: Correct what the message names; `kubectl describe {kind.lower()} {meta.name}` shows more."


def pod(found: Pod) -> Iterator[str]:
    meta, status = found.metadata, found.status
    node = f"on node {found.spec.node_name}" if found.spec.node_name else "without a node"
    yield f"{meta.namespace}/{meta.name}: {status.phase or 'not seen yet'} (Pod {node})"
    reason = pod_pending.pending_reason(found, f"Pod {meta.name}")
    if reason is not None:
        yield f"Why: {reason.message}"
    for container in found.containers:
        ended = container.state.terminated
        if ended is not None and ended.exit_code:
            text = f": {terminal_text.strip_control(ended.message).strip()}" if ended.message.strip() else ""
            yield f"Container {container.name} failed: {ended.reason}, exit code {ended.exit_code}{text}"


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
    yield f"{name}: {phase or 'no phase'} ({kind})"
    conditions = [condition for condition in getattr(status, "conditions", ()) if condition.message]
    for condition in conditions:
        yield f"{condition.type} is {condition.status}: {condition.message}"
    if not conditions:
        yield "Why: no status reported yet."
