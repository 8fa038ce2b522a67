"""Period of the servers at a cloud: a new number replaces them before their claims end. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from skysail.kinds import claim_periods
from skysail.kinds.serving.snapshot import Snapshot


def period(snapshot: Snapshot) -> int:
    """Return the period that the servers should have: that of the Deployment, or the next one if a claim ends soon."""
    deployment = snapshot.deployment
    if deployment is None:
        return 0
    return deployment.period + any(due <= snapshot.now for due in _due_times(snapshot))


def until_due(snapshot: Snapshot) -> float | None:
    """Return the seconds until the next claim has to be replaced, or None if none will be due later."""
    left = ((due - snapshot.now).total_seconds() for due in _due_times(snapshot))
    return min((seconds + 1.0 for seconds in left if seconds > 0), default=None)


def _due_times(snapshot: Snapshot) -> Iterator[datetime]:
    """Yield when servers of the Deployment's revision are due. A rollout replaces those of another one anyway."""
    deployment = snapshot.deployment
    if deployment is None:
        return
    pods = [pod for pod in snapshot.serving_pods(deployment.revision) if pod.is_at_cloud]
    yield from claim_periods.due_times(pods, deployment.period, replicas=deployment.spec.replicas)
