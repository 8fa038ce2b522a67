"""Candidates of a claim, tried one after the other: the next one after a refusal, and the wait after the last. Pure.

1. Only one candidate is tried at a time. The status names it before the cloud is called.
2. A candidate is refused if the cloud has no capacity for it, or if it bills more than the cap. In the second case the
   next candidate is tried only when the termination of the dear instance is confirmed.
3. After the last candidate the claim waits and starts again with the first, or ends if the pod may leave.
4. A request that is rejected for one candidate may be accepted for another. If it is rejected for all of them, or for
   many of them in a row, the claim ends.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

import msgspec

from skysail.base.names import Condition as Conditions
from skysail.base.names import Reason
from skysail.base.timestamps import timestamp
from skysail.claims.plan import status as claim_status
from skysail.claims.plan import termination
from skysail.claims.plan.termination import TerminationReason
from skysail.claims.snapshot import NotObserved, Observed, Snapshot
from skysail.claims.types import Candidate, CloudInstance, CloudInstanceStatus, EarlierInstance, RefusedCandidate
from skysail.cloud.account import GpuRequest, Instance, LaunchSpec
from skysail.cloud.errors import MachineRejected, NoCapacity, Throttled
from skysail.core.actions import Event, Plan
from skysail.core.conditions import set_condition

_MAX_MESSAGE_LENGTH = 512
_MAX_REFUSALS_IN_MESSAGE = 8
_MAX_EARLIER_INSTANCES = 64
# Delay after a round in which an instance was too dear: each round may be billed for some seconds.
_PRICE_DELAY = timedelta(minutes=5)
_MAX_PRICE_DELAY = timedelta(hours=1)

# Exit codes of a program that was killed by SIGKILL or SIGTERM.
_KILLED = {termination.EXIT_LOST, 143}

# Number of candidates for which a request is rejected before it counts as wrong itself.
_MAX_REJECTIONS = 8
# A cloud that asks to wait for so long, such as one whose account cannot pay, is left by pods that may leave.
_LONG_THROTTLE_SECONDS = 120.0

RefusalReason = Literal["NoCapacity", "PriceAboveCap", "Rejected"]


def launch_spec(claim: CloudInstance, spec: LaunchSpec) -> LaunchSpec:
    """Return the launch spec for the candidate that is tried. Without candidates, the cloud chooses."""
    if not claim.spec.candidates:
        return spec
    candidate = claim.spec.candidates[claim.status.candidate]
    return msgspec.structs.replace(
        spec,
        gpus=GpuRequest(candidate.gpu_type, spec.gpus.count) if spec.gpus else None,
        region=candidate.region,
        cloud_type=candidate.cloud_type,
        max_usd_per_hour=claim.spec.max_usd_per_hour,
    )


def is_hopeless(claim: CloudInstance) -> bool:
    """Return whether the claim was written without any candidate, only to end."""
    return claim.spec.may_leave and not claim.spec.candidates


def is_exhausted(claim: CloudInstance) -> bool:
    """Return whether all candidates were refused, so that the next round starts after a delay."""
    status = claim.status
    return bool(status.refused_candidates) and status.candidate == 0


def begin(claim: CloudInstance, status: CloudInstanceStatus) -> CloudInstanceStatus:
    """Forget the refusals of the last round when a new one starts."""
    return msgspec.structs.replace(status, refused_candidates=()) if is_exhausted(claim) else status


def no_capacity(snapshot: Snapshot, error: NoCapacity) -> Plan:
    """Plan after the cloud answered that it has no capacity for the candidate, or rejects the request for it."""
    reason: RefusalReason = "Rejected" if isinstance(error, MachineRejected) else "NoCapacity"
    return _refuse(snapshot, snapshot.object.status, reason, str(error))


def long_throttle(snapshot: Snapshot) -> str:
    """Return why the cloud asks to wait for long, if the pod may leave it. Returns an empty string otherwise."""
    if not snapshot.object.spec.may_leave:
        return ""
    for call in (snapshot.call, snapshot.throttled):
        if call is None or call.failed is None or not isinstance(call.error, Throttled):
            continue
        is_long = call.error.retry_after >= _LONG_THROTTLE_SECONDS
        if is_long and termination.is_within(call.pause, call.failed, snapshot.now):
            return str(call.error)
    return ""


def give_up(snapshot: Snapshot, status: CloudInstanceStatus | None = None, *, report: str = "") -> Plan:
    """End the claim unpaid, so that the pod's replacement can go to another provider. `report` says why."""
    report = report or summary(snapshot.object, status or snapshot.object.status)
    message = f"{report} The pod ends, so that its replacement can go to another provider."
    end = TerminationReason(Reason.NO_CAPACITY, message)
    over = termination.finalize(snapshot, end, usd=claim_status.NEVER_PAID, status=status)
    return msgspec.structs.replace(over, events=(Event(Reason.NO_CAPACITY, message, warning=True),))


def price_delay(snapshot: Snapshot) -> float | None:
    """Return the seconds until the next round if an instance of the last round was too dear.

    The time is in the status, so that a restart of the operator does not launch a dear instance again at once.
    """
    status = snapshot.object.status
    if not is_exhausted(snapshot.object) or all(row.reason != "PriceAboveCap" for row in status.refused_candidates):
        return None
    rounds = min(len(status.earlier_instances), 8)
    delay = min(_MAX_PRICE_DELAY, _PRICE_DELAY * (1 << max(0, rounds - 1)))
    since = datetime.fromisoformat(max(row.at for row in status.refused_candidates))
    if not termination.is_within(delay, since, snapshot.now):
        return None
    return (since + delay - snapshot.now).total_seconds()


def price_above_cap(snapshot: Snapshot, instance: Instance, status: CloudInstanceStatus) -> TerminationReason | None:
    """Return the reason to terminate an instance that the cloud bills above the cap.

    Returns None if its program has exited: its result is paid for, and is used.
    """
    cap, price = snapshot.object.spec.max_usd_per_hour, status.usd_per_hour
    if cap is None or price is None or price <= cap or instance.exit is not None:
        return None
    return TerminationReason(Reason.PRICE_ABOVE_CAP, _dear_message(instance.id, price, cap))


def terminate_dear(
    snapshot: Snapshot, end: TerminationReason, ids: tuple[str, ...], status: CloudInstanceStatus
) -> Plan:
    """Terminate a dear instance without grace. Its program counts as not started, if the status says nothing else."""
    if snapshot.object.status.ready_time is None:
        status = msgspec.structs.replace(status, ready_time=None, finish_time=None, exit=None)
        status = set_condition(snapshot, status, Conditions.LAUNCHED, "False", end.reason, end.message)
    plan = termination.request_termination(snapshot, end, ids, status)
    if snapshot.object.status.state == "Terminating":
        return plan
    return msgspec.structs.replace(plan, events=(Event(end.reason, end.message, warning=True),))


def continue_after_price(snapshot: Snapshot, made: Plan) -> Plan:
    """Try the next candidate instead of finishing the claim, if a dear instance is now confirmed as terminated.

    The claim is finished all the same if nothing shall run any more, if the status says that the program ran, or if
    the program exited by itself.
    """
    old, new, cap = snapshot.object.status, made.status, snapshot.object.spec.max_usd_per_hour
    if not isinstance(new, CloudInstanceStatus) or new.state != "Terminated" or cap is None:
        return made
    if (new.usd_per_hour or 0.0) <= cap or old.ready_time or termination.termination_reason(snapshot):
        return made
    if not _was_terminated_by_us(snapshot, new):
        return made
    paid = (new.usd_total or 0.0) - sum(earlier.usd for earlier in old.earlier_instances)
    status = msgspec.structs.replace(
        old, earlier_instances=with_earlier(old, new.instance_id, max(0.0, round(paid, 6)))
    )
    return _refuse(snapshot, status, "PriceAboveCap", _dear_message(new.instance_id, new.usd_per_hour, cap))


def _was_terminated_by_us(snapshot: Snapshot, final: CloudInstanceStatus) -> bool:
    """Return whether the program did not end by itself.

    A crash right after the request to terminate leaves no record of it. Then only the exit code tells.
    """
    pending = termination.pending_termination(snapshot)
    code = final.exit.code if final.exit else termination.EXIT_LOST
    if pending is not None and pending.reason == Reason.PRICE_ABOVE_CAP:
        return code != 0
    return code in _KILLED


def without_earlier(snapshot: Snapshot) -> tuple[Snapshot, tuple[str, ...]]:
    """Remove the terminated instances of refused candidates from the observation.

    Returns also the ids of those that run again by the cloud's word: they have to be terminated once more.
    """
    earlier = {instance.id for instance in snapshot.object.status.earlier_instances}
    observation = snapshot.observation
    if not earlier:
        return snapshot, ()
    instances = observation.instances if isinstance(observation, Observed) else observation.others
    rest = tuple(instance for instance in instances if instance.id not in earlier)
    again = termination.running_ids(tuple(instance for instance in instances if instance.id in earlier))
    if isinstance(observation, NotObserved):
        return msgspec.structs.replace(snapshot, observation=msgspec.structs.replace(observation, others=rest)), again
    return msgspec.structs.replace(snapshot, observation=Observed(rest) if rest else NotObserved()), again


def summary(claim: CloudInstance, status: CloudInstanceStatus) -> str:
    """List the refused candidates and the nearest miss in a sentence or two."""
    provider, miss = claim.spec.provider, claim.spec.nearest_miss
    nearest = f" Nearest miss: {miss.rstrip('.')}." if miss else ""
    rows = status.refused_candidates
    if not rows:
        return f"No offer of {provider} fits.{nearest}"
    parts = [
        f"{_describe(claim.spec.candidates[row.candidate])}: {row.message.rstrip('.')}"
        for row in rows[:_MAX_REFUSALS_IN_MESSAGE]
    ]
    more = f" and {len(rows) - len(parts)} more" if len(rows) > len(parts) else ""
    return f"No candidate of {provider} can be had now: {'; '.join(parts)}{more}.{nearest}"


def _refuse(snapshot: Snapshot, status: CloudInstanceStatus, reason: RefusalReason, message: str) -> Plan:
    """Record the refusal and go on to the next candidate."""
    claim, index = snapshot.object, status.candidate
    row = RefusedCandidate(
        candidate=index, reason=reason, message=message[:_MAX_MESSAGE_LENGTH], at=timestamp(snapshot.now)
    )
    earlier = tuple(old for old in status.refused_candidates if old.candidate < index)
    status = msgspec.structs.replace(status, refused_candidates=(*earlier, row))
    if _is_rejected_for_good(claim, status):
        return _rejected_for_good(snapshot, status, message)
    if index + 1 < len(claim.spec.candidates):
        following = _describe(claim.spec.candidates[index + 1])
        report = f"{_describe(claim.spec.candidates[index])}: {row.message} The next candidate is {following}."
        status = msgspec.structs.replace(status, candidate=index + 1)
        status = claim_status.reset_to_claimed(snapshot, Reason.TRYING_NEXT_CANDIDATE, report, status=status)
        return Plan(status=status, requeue_after=0.0)
    status = msgspec.structs.replace(status, candidate=0)
    if claim.spec.may_leave:
        return give_up(snapshot, claim_status.without_instance(status))
    report = summary(claim, status)
    status = claim_status.reset_to_claimed(
        snapshot, Reason.NO_CAPACITY, f"{report} The launch is retried later.", status=status
    )
    return Plan(status=status, events=(Event(Reason.NO_CAPACITY, report, warning=True),), requeue_after=0.0)


def _is_rejected_for_good(claim: CloudInstance, status: CloudInstanceStatus) -> bool:
    """Return whether every answer of this round rejects the request, for all candidates or for many in a row."""
    rows = status.refused_candidates
    return len(rows) >= min(_MAX_REJECTIONS, len(claim.spec.candidates)) and all(
        row.reason == "Rejected" for row in rows
    )


def _rejected_for_good(snapshot: Snapshot, status: CloudInstanceStatus, message: str) -> Plan:
    """End the claim. Another provider may accept the request of a pod that may leave."""
    if snapshot.object.spec.may_leave:
        return give_up(snapshot, claim_status.without_instance(msgspec.structs.replace(status, candidate=0)))
    end = TerminationReason(Reason.REFUSED, message)
    over = termination.finalize(
        snapshot, end, usd=claim_status.NEVER_PAID, status=claim_status.without_instance(status)
    )
    return msgspec.structs.replace(over, events=(Event(Reason.REFUSED, message, warning=True),))


def _dear_message(instance: str, price: float | None, cap: float) -> str:
    return f"Instance {instance} costs {price or 0.0:g} USD/h, above the cap of {cap:g}: raise the cap to accept it."


def with_earlier(status: CloudInstanceStatus, instance: str, usd: float) -> tuple[EarlierInstance, ...]:
    """Add the terminated instance. Beyond the limit the oldest entry is dropped, and its cost is kept."""
    rows = (*status.earlier_instances, EarlierInstance(id=instance, usd=usd))
    if len(rows) <= _MAX_EARLIER_INSTANCES:
        return rows
    first, second, *rest = rows
    return (msgspec.structs.replace(second, usd=round(first.usd + second.usd, 6)), *rest)


def _describe(candidate: Candidate) -> str:
    place = ", ".join(filter(None, (candidate.cloud_type, candidate.region, f"{candidate.usd_per_hour:g} USD/h")))
    return f"{candidate.gpu_type or 'CPU'} ({place})"
