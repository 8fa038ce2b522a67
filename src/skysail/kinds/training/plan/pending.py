"""Pending reason of a TrainingJob, as one sentence. Pure."""

from __future__ import annotations

from skysail.base.names import Condition as Type
from skysail.base.names import Reason
from skysail.core import conditions, pod_pending
from skysail.core.pod_pending import Wait
from skysail.kinds.training.objects import Pod, named, newest
from skysail.kinds.training.plan import completion, gang_admission
from skysail.kinds.training.plan.completion import Rank
from skysail.kinds.training.snapshot import Run, Snapshot

# Pending reasons of pods that a gang scheduler may explain better.
_HELD_BACK = {Reason.INSUFFICIENT_RESOURCES, Reason.STARTING}


def waits_for(snapshot: Snapshot, run: Run) -> Wait | None:
    """Return the pending reason, or None if every pod runs or is done."""
    ranks = completion.ranks(snapshot.object.spec)
    pods = newest(pod for pod in run.pods if not pod.metadata.is_deleting)
    up = completion.done(run) | {rank for rank, pod in pods.items() if pod.runs or pod.status.phase == "Succeeded"}
    late = [rank for rank in ranks if rank not in up]
    if not late:
        return None
    # Rejected pods come first: capacity for the others would not help.
    if snapshot.complaint is not None and any(rank not in pods for rank in late):
        return pod_pending.refused(snapshot.complaint)
    found = (_obstacle(snapshot, pods[rank]) for rank in late if rank in pods)
    wait = next((each for each in found if each is not None), None) or _starting(late, len(ranks))
    said = gang_admission.complaint(snapshot) if wait.reason in _HELD_BACK else None
    return wait if said is None else Wait(Reason.NOT_ADMITTED, pod_pending.cut(said))


def _obstacle(snapshot: Snapshot, pod: Pod) -> Wait | None:
    who = named(pod.role, pod.index)
    if pod.status.phase == "Failed":
        return Wait(Reason.POD_FAILED, f"{who} failed; the other pods continue.")
    before = conditions.find(snapshot.object.status.conditions, Type.RUNNING)
    return pod_pending.obstacle(pod, who, told=snapshot.obstacle, before=before.message if before else "")


def _starting(late: list[Rank], all_: int) -> Wait:
    who, up = named(*late[0]), all_ - len(late)
    if len(late) == 1:
        return Wait(Reason.STARTING, f"{up} of {all_} pods run; {who} is starting.")
    return Wait(Reason.STARTING, f"{up} of {all_} pods run; {who} and {len(late) - 1} more are starting.")
