"""Place and cost of an attempt: in the cluster, or at a cloud. Pure.

The checkpoint of a cloud is in a volume of that cloud. So an attempt that runs elsewhere starts without it.
"""

from __future__ import annotations

import msgspec

from skysail.base.names import EventReason
from skysail.core.actions import Event
from skysail.kinds.training.api.training_job import (
    Attempt,
    CloudPlacement,
    LatestCheckpoint,
    TrainingJobStatus,
)
from skysail.kinds.training.snapshot import AttemptState, Snapshot

CLUSTER = "cluster"


def record(snapshot: Snapshot, attempt: AttemptState, status: TrainingJobStatus) -> TrainingJobStatus:
    """Return the status with the place and the cost of the current attempt, as far as they are known."""
    current = _with_cost(snapshot, _with_place(snapshot, attempt, status.attempts[-1]))
    changed = msgspec.structs.replace(status, attempts=(*status.attempts[:-1], current))
    return msgspec.structs.replace(changed, cloud=_placement(snapshot, attempt, changed))


def events(before: TrainingJobStatus, after: TrainingJobStatus) -> tuple[Event, ...]:
    """Return the event about a checkpoint that was left behind, when the place of an attempt becomes known."""
    if _new_place(before, after) is None:
        return ()
    new, checkpoint = after.attempts[-1], before.checkpoint
    if checkpoint is None or _place_of(checkpoint) == new.provider:
        return ()
    there = "in the cluster" if new.provider == CLUSTER else f"at {new.provider}"
    where = "a volume of the cluster" if not checkpoint.provider else f"a volume at {checkpoint.provider}"
    message = (
        f"Attempt {new.number} runs {there} and starts without a checkpoint, because checkpoint {checkpoint.path} is "
        f"in {where}. To continue from it, run the job where the checkpoint is."
    )
    return (Event(EventReason.CHECKPOINT_LEFT_BEHIND, message, warning=True),)


def _new_place(before: TrainingJobStatus, after: TrainingJobStatus) -> str | None:
    """Return the place of the newest attempt, when it becomes known; None otherwise."""
    new = after.attempts[-1] if after.attempts else None
    if new is None or any(old.number == new.number and old.provider is not None for old in before.attempts):
        return None
    return new.provider


def _with_place(snapshot: Snapshot, attempt: AttemptState, current: Attempt) -> Attempt:
    """Return the attempt with its place. An attempt that moved has resumed from nothing."""
    nodes = [pod.spec.node_name for pod in attempt.pods if pod.spec.node_name]
    if current.provider is not None or not nodes:
        return current
    provider = snapshot.config.cloud_nodes.get(nodes[0], CLUSTER)
    resumed = current.resumed_from
    has_moved = resumed is not None and _place_of(resumed) != provider
    return msgspec.structs.replace(current, provider=provider, resumed_from=None if has_moved else resumed)


def _with_cost(snapshot: Snapshot, current: Attempt) -> Attempt:
    """Return the attempt with the final cost of its ended instances."""
    costs = [claim.status.usd_total for claim in snapshot.claims if claim.status.usd_total is not None]
    if not costs:
        return current
    return msgspec.structs.replace(current, usd_total=max(round(sum(costs), 6), current.usd_total or 0.0))


def _placement(snapshot: Snapshot, attempt: AttemptState, status: TrainingJobStatus) -> CloudPlacement | None:
    """Return the cloud of the job. None for a job that never ran at one."""
    costs = [each.usd_total for each in status.attempts if each.usd_total is not None]
    total = round(sum(costs), 6) if costs else (status.cloud.usd_total if status.cloud else None)
    provider = status.attempts[-1].provider
    if provider in {None, CLUSTER}:
        return None if total is None and provider == CLUSTER else status.cloud
    nodes = [pod.spec.node_name for pod in attempt.pods if pod.spec.node_name]
    live = [claim for claim in snapshot.claims if claim.status.state != "Terminated"]
    prices = [claim.status.usd_per_hour for claim in live if claim.status.usd_per_hour is not None]
    previous = status.cloud
    return CloudPlacement(
        provider=provider or "",
        node=nodes[0] if nodes else (previous.node if previous else ""),
        usd_per_hour=round(sum(prices), 6) if prices else None,
        usd_total=total,
    )


def _place_of(checkpoint: LatestCheckpoint) -> str:
    return checkpoint.provider or CLUSTER
