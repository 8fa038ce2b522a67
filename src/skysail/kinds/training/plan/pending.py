"""Pending reason of a TrainingJob, as one sentence. Pure."""

from __future__ import annotations

from skysail.base.names import Condition as Type
from skysail.base.names import Reason
from skysail.core import conditions, pod_pending
from skysail.core.pod_pending import PendingReason
from skysail.kinds.training.objects import Pod, display_name, latest_by_rank
from skysail.kinds.training.plan import completion, gang_admission
from skysail.kinds.training.plan.completion import Rank
from skysail.kinds.training.snapshot import AttemptState, Snapshot

# Pending reasons of pods that a gang scheduler may explain better.
_HELD_BACK = {Reason.INSUFFICIENT_RESOURCES, Reason.STARTING}


def pending_reason(snapshot: Snapshot, attempt: AttemptState) -> PendingReason | None:
    """Return the pending reason, or None if every pod runs or is done."""
    ranks = completion.all_ranks(snapshot.object.spec)
    pods = latest_by_rank(pod for pod in attempt.pods if not pod.metadata.is_deleting)
    up = completion.completed_ranks(attempt) | {
        rank for rank, pod in pods.items() if pod.is_running or pod.status.phase == "Succeeded"
    }
    late = [rank for rank in ranks if rank not in up]
    if not late:
        return None
    # Rejected pods come first: capacity for the others would not help.
    if snapshot.create_failure is not None and any(rank not in pods for rank in late):
        return pod_pending.creation_rejected(snapshot.create_failure)
    found = (_pod_pending_reason(snapshot, pods[rank]) for rank in late if rank in pods)
    pending = next((pending_reason for pending_reason in found if pending_reason is not None), None) or _starting(
        late, len(ranks)
    )
    message = gang_admission.pods_pending_reason(snapshot) if pending.reason in _HELD_BACK else None
    return pending if message is None else PendingReason(Reason.NOT_ADMITTED, pod_pending.truncate(message))


def _pod_pending_reason(snapshot: Snapshot, pod: Pod) -> PendingReason | None:
    who = display_name(pod.role, pod.index)
    if pod.status.phase == "Failed":
        return PendingReason(Reason.POD_FAILED, f"{who} failed; the other pods continue.")
    previous = conditions.find_condition(snapshot.object.status.conditions, Type.RUNNING)
    return pod_pending.pending_reason(pod, who, event=snapshot.pod_event, previous=previous.message if previous else "")


def _starting(late: list[Rank], all_: int) -> PendingReason:
    who, up = display_name(*late[0]), all_ - len(late)
    if len(late) == 1:
        return PendingReason(Reason.STARTING, f"{up} of {all_} pods run; {who} is starting.")
    return PendingReason(Reason.STARTING, f"{up} of {all_} pods run; {who} and {len(late) - 1} more are starting.")
