"""State of a run from its claim. A run is one container of one pod; a gang's claim has one run for each rank. Pure."""

from __future__ import annotations

from datetime import datetime

from skysail.base.names import Condition, Reason
from skysail.claims.plan.termination import EXIT_LOST, EXIT_NOT_STARTED
from skysail.claims.types import CloudInstance, Exit, RankStatus
from skysail.cloud.provider import Ended, Pending, RunId, Running, State
from skysail.core import conditions

# Prefix of a pod's imageID, for clouds whose prefix differs from their name.
_HOSTS = {"modal": "modal.com"}
# Do not write these reasons to the pod: every launch passes through them.
_USUAL = {Reason.LAUNCHING, Reason.LAUNCHED, Reason.WAITING_FOR_NODE, Reason.TRYING_NEXT_CANDIDATE}
# Exit code of a rank that exited with 0 in a gang that failed.
_EXIT_WITH_GANG = 143
# Reasons to end a running program, which sees only a signal.
_LIMITS = {Reason.DEADLINE_EXCEEDED, Reason.BUDGET_EXHAUSTED}
_ENDED_BY_SIGNAL = {EXIT_LOST, 143}


def claim_name(owner_uid: str, launch: int) -> str:
    """Return the name of a claim. It is unique: UIDs are never reused, and a pod at a cloud has one container."""
    return f"{owner_uid}-{launch}"


def runs_of(claim: CloudInstance) -> tuple[RunId, ...]:
    """Return the runs of a claim in the order of ranks. An instance that serves another kind has none."""
    spec = claim.spec
    if spec.member_pods:
        return tuple(RunId(member.uid, member.container, member.run) for member in spec.member_pods)
    if spec.owner.kind != "Pod":
        return ()
    return (RunId(spec.owner.uid, spec.owner.container, spec.launch),)


def rank_of(claim: CloudInstance, run: RunId) -> int:
    """Return the rank of a run of the claim."""
    return runs_of(claim).index(run)


def state_of(claim: CloudInstance, rank: int = 0) -> State:
    """Derive the state of a run from its claim.

    A run has ended only if the claim is terminated, or if its rank of a gang has exited before the others.
    """
    status = claim.status
    member = status.ranks[rank] if rank < len(status.ranks) else None
    if status.state == "Terminated":
        return _end(claim, member)
    if member is not None and member.exit is not None and not claim.spec.ends_together:
        return _exited(claim, member, member.exit)
    if status.ready_time is not None:
        return Running(_seconds(status.ready_time), _image_id(claim))
    launched = conditions.find_condition(status.conditions, Condition.LAUNCHED)
    if launched is None or launched.reason in _USUAL:
        return Pending("ContainerCreating")
    return Pending(launched.reason, launched.message)


def _end(claim: CloudInstance, member: RankStatus | None) -> Ended:
    status = claim.status
    if member is not None and member.exit is not None:
        return _exited(claim, member, member.exit)
    condition = conditions.find_condition(status.conditions, Condition.TERMINATED)
    reason, message = (condition.reason, condition.message) if condition else ("", "")
    code = EXIT_LOST if status.instance_id else EXIT_NOT_STARTED
    if status.exit is not None:
        reason, message = _cause(claim, status.exit, _finished(claim), reason)
        # The exit of a gang is that of another rank, if this one has none.
        code = status.exit.code if member is None else code
    return Ended(
        code=code,
        reason=reason,
        message=message,
        started=None if status.ready_time is None else _seconds(status.ready_time),
        ended=_finished(claim),
        image_id=_image_id(claim),
    )


def _exited(claim: CloudInstance, member: RankStatus, exit_: Exit) -> Ended:
    """Return the end of a rank that has exited. A rank that was stopped names the rank that failed."""
    gang = claim.status.exit
    finished = _seconds(member.finish_time) if member.finish_time else _finished(claim)
    code, (reason, message) = exit_.code, _cause(claim, exit_, finished)
    if gang is not None and gang.code != 0:
        message = message or gang.message
        if code == 0 and claim.spec.ends_together:
            code, reason = _EXIT_WITH_GANG, Reason.GANG_FAILED
            message, finished = f"{gang.message} This rank had exited with 0.", _finished(claim)
    ready = claim.status.ready_time
    return Ended(
        code=code,
        reason=reason,
        message=message,
        started=None if ready is None else _seconds(ready),
        ended=finished,
        image_id=_image_id(claim),
    )


def _cause(claim: CloudInstance, exit_: Exit, finished: float, default: str = "") -> tuple[str, str]:
    """Return reason and message of an exit. Of a program that a limit of its claim ended, it is that limit."""
    status = claim.status
    end = conditions.find_condition(status.conditions, Condition.TERMINATED)
    is_late = status.deadline_time is not None and finished >= _seconds(status.deadline_time)
    was_ended = exit_.code in _ENDED_BY_SIGNAL or (exit_.code != 0 and is_late)
    if end is not None and end.reason in _LIMITS and was_ended and exit_.reason in {"", "Error"}:
        return end.reason, f"{end.message} {exit_.message}".strip()
    return exit_.reason or default, exit_.message


def _finished(claim: CloudInstance) -> float:
    finished = claim.status.finish_time or claim.status.end_time
    assert finished is not None, "a terminated claim has an end time"
    return _seconds(finished)


def _image_id(claim: CloudInstance) -> str:
    id_, cloud = claim.status.instance_id, claim.spec.provider
    return f"{_HOSTS.get(cloud, cloud)}/{id_}" if id_ else ""


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()
