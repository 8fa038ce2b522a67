"""Termination of an instance: its reason, the request to the cloud, the confirmation and the final status. Pure.

An instance is terminated only when the cloud confirms it. Only ids and states decide which instances to terminate, so
that no other value from a cloud, however odd, keeps an instance alive.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import msgspec

from skysail.base.names import Condition as Conditions
from skysail.base.names import Finalizer, Reason
from skysail.base.timestamps import timestamp
from skysail.claims.plan import status as claim_status
from skysail.claims.snapshot import Observed, OwnerState, Snapshot
from skysail.claims.types import CLOUD_INSTANCE, CloudInstance, CloudInstanceStatus, Exit
from skysail.cloud.account import Instance
from skysail.core import conditions
from skysail.core.actions import Action, Delete, Event, Plan, SetFinalizers, TerminateInstance
from skysail.core.conditions import set_condition

# Exit codes of a killed container, and of a container that could not be started.
EXIT_LOST = 137
EXIT_NOT_STARTED = 128
_TERMINATE_RETRY = timedelta(seconds=30)
# Pattern of a condition's reason.
REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]{0,254}[A-Za-z0-9_])?")
# Reasons about money: users choose the grace period, and each second of it costs more than was allowed.
_WITHOUT_GRACE = {Reason.PRICE_ABOVE_CAP, Reason.BUDGET_EXHAUSTED}
_OWN_ENDS = {Reason.COMPLETED, "Error"}


class TerminationReason(msgspec.Struct, frozen=True):
    """Reason and message of a termination."""

    reason: str
    message: str


_PROGRAM_ENDED = TerminationReason(Reason.COMPLETED, "The program exited.")


def termination_reason(snapshot: Snapshot) -> TerminationReason | None:
    """Return why the instance has to be terminated although its program runs, or None."""
    claim = snapshot.object
    if snapshot.owner is OwnerState.ABSENT:
        parts = " or one of its pods" if claim.spec.member_pods else ""
        return TerminationReason(Reason.OWNER_DELETED, f"{_beneficiary(snapshot)}{parts} no longer exists.")
    if claim.metadata.is_deleting:
        return TerminationReason(Reason.DELETED, "The claim was deleted.")
    span = lifetime(claim.status)
    if span is not None and snapshot.uptime >= span:
        message = f"The instance reached its maximum lifetime of {span:.0f} seconds{_because(claim)}."
        return TerminationReason(Reason.DEADLINE_EXCEEDED, message)
    return None


def lifetime(status: CloudInstanceStatus) -> float | None:
    """Return the maximum lifetime in seconds.

    A duration, not a deadline: changing the wall clock must not terminate an instance.
    """
    begun = status.launching.at if status.launching else status.start_time
    if status.deadline_time is None or begun is None:
        return None
    return (datetime.fromisoformat(status.deadline_time) - datetime.fromisoformat(begun)).total_seconds()


def _because(claim: CloudInstance) -> str:
    """Return what made the lifetime shorter than the claim asks for, with the fix. Empty if nothing did."""
    limit = claim.status.lifetime_limit
    return f", because {limit} left no more: raise it" if limit else ""


def pending_termination(snapshot: Snapshot) -> TerminationReason | None:
    """Return the reason of a termination in progress, which is always completed."""
    if snapshot.object.status.state != "Terminating":
        return None
    condition = conditions.find_condition(snapshot.object.status.conditions, Conditions.TERMINATED)
    return (
        TerminationReason(condition.reason, condition.message)
        if condition
        else TerminationReason(Reason.DELETED, "The instance is being terminated.")
    )


def program_finished(instance: Instance) -> TerminationReason | None:
    """Return the reason to terminate after the program exited: some clouds bill until the instance is terminated."""
    if instance.exit is None:
        return None
    reason = instance.exit.reason
    if reason in _OWN_ENDS or not REASON.fullmatch(reason):
        return _PROGRAM_ENDED
    return TerminationReason(reason, instance.exit.message or "The cloud terminated the program.")


def has_just_finished(snapshot: Snapshot, instance: Instance) -> bool:
    """Return whether the program exited just now and no termination of the known instance was requested yet."""
    if instance.exit is None or instance.id in snapshot.termination_requests or not snapshot.object.status.instance_id:
        return False
    return abs(snapshot.now.timestamp() - instance.exit.ended) < _TERMINATE_RETRY.total_seconds()


def running_ids(instances: tuple[Instance, ...]) -> tuple[str, ...]:
    return tuple(instance.id for instance in instances if instance.state != "ended")


def request_termination(
    snapshot: Snapshot, end: TerminationReason, ids: tuple[str, ...], status: CloudInstanceStatus
) -> Plan:
    """Request the termination, record it in the status, and repeat the request until the cloud confirms."""
    has_grace = end.reason not in _WITHOUT_GRACE
    new_status = set_condition(snapshot, status, Conditions.TERMINATED, "False", end.reason, end.message)
    new_status = msgspec.structs.replace(new_status, state="Terminating")
    return Plan(
        actions=terminate_actions(snapshot, ids, has_grace=has_grace),
        status=new_status,
        requeue_after=snapshot.timings.poll_interval,
    )


def terminate_actions(snapshot: Snapshot, ids: tuple[str, ...], *, has_grace: bool = True) -> tuple[Action, ...]:
    claim = snapshot.object
    grace = float(claim.spec.grace_seconds) if has_grace and snapshot.owner is not OwnerState.ABSENT else 0.0
    retry_after = _TERMINATE_RETRY + timedelta(seconds=grace)
    return tuple(
        TerminateInstance(claim.spec.provider, id_, grace)
        for id_ in ids
        if id_ not in snapshot.termination_requests
        or not is_within(retry_after, snapshot.termination_requests[id_], snapshot.now)
    )


def duplicate_events(snapshot: Snapshot, ids: tuple[str, ...]) -> tuple[Event, ...]:
    """Record one event for each duplicate, when its termination is first requested."""
    cloud = snapshot.object.spec.provider
    return tuple(
        Event(
            Reason.REPLY_LOST,
            f"{cloud} created a second instance {id_} for one claim; Skysail terminates it.",
            warning=True,
        )
        for id_ in ids
        if id_ not in snapshot.termination_requests
    )


def on_ended(snapshot: Snapshot, instance: Instance, status: CloudInstanceStatus) -> Plan:
    """Finish a claim whose instance the cloud reports as terminated."""
    end = pending_termination(snapshot) or termination_reason(snapshot) or program_finished(instance)
    if status.exit is None:
        lost = Exit(
            code=EXIT_LOST, reason=end.reason if end else Reason.LOST, message="The cloud terminated the instance."
        )
        status = msgspec.structs.replace(status, exit=lost)
    if end is None:
        end = TerminationReason(Reason.LOST, "The cloud terminated the instance, for example because it was preempted.")
    moment = claim_status.time(instance.ended) or timestamp(snapshot.now)
    usd = claim_status.usd(instance.usd_total)
    status = msgspec.structs.replace(status, finish_time=status.finish_time or moment, end_time=moment)
    usd = _cost(status, moment) if usd is None else usd
    return finalize(snapshot, end, usd=usd + _cost_of_doubles(snapshot, instance), status=status)


def _cost_of_doubles(snapshot: Snapshot, instance: Instance) -> float:
    seen = snapshot.observation.instances if isinstance(snapshot.observation, Observed) else snapshot.observation.others
    return sum(claim_status.usd(other.usd_total) or 0.0 for other in seen if other.id != instance.id)


def on_vanished(snapshot: Snapshot) -> Plan:
    """Finish a claim whose instance is gone by several complete inventories and by a lookup.

    The cost is capped at the deadline, because the cloud bills no longer than that.
    """
    status, previous = snapshot.object.status, _last_seen(snapshot)
    if previous is not None:
        status = claim_status.mirror_instance(snapshot, previous)
        if previous.state == "ended":
            return on_ended(snapshot, previous, status)
    moment = min(timestamp(snapshot.now), status.deadline_time or timestamp(snapshot.now))
    usd = _cost(status, moment)
    end = pending_termination(snapshot)
    if end is None and status.exit is not None:
        end = _PROGRAM_ENDED
    if end is not None:
        return finalize(snapshot, end, usd=usd, status=status)
    exit_ = Exit(code=EXIT_LOST, reason=Reason.LOST, message="The instance disappeared from the cloud.")
    lost = msgspec.structs.replace(status, exit=exit_, finish_time=status.finish_time or moment)
    end = TerminationReason(
        Reason.LOST, "The instance disappeared from the cloud, for example because it was preempted."
    )
    return finalize(snapshot, end, usd=usd, status=lost)


def finalize(
    snapshot: Snapshot, end: TerminationReason, *, usd: float, status: CloudInstanceStatus | None = None
) -> Plan:
    """Write the final status and cost, once, after a confirmed termination."""
    old = status or snapshot.object.status
    new_status = set_condition(snapshot, old, Conditions.TERMINATED, "True", end.reason, end.message)
    launched = conditions.find_condition(new_status.conditions, Conditions.LAUNCHED)
    if launched is not None and launched.status == "Unknown":
        new_status = set_condition(snapshot, new_status, Conditions.LAUNCHED, "False", end.reason, end.message)
    total = round(usd + sum(earlier.usd for earlier in old.earlier_instances), 6)
    final = msgspec.structs.replace(
        new_status,
        state="Terminated",
        launching=None,
        end_time=old.end_time or timestamp(snapshot.now),
        usd_total=total if old.usd_total is None else old.usd_total,
    )
    # Reconcile again at once: a deletion of the claim or of its owner waits for the finalizer.
    return Plan(status=final, requeue_after=0.0)


def on_terminated(snapshot: Snapshot) -> Plan:
    """Plan a terminated claim: terminate instances that appear late, and delete the claim after its owner."""
    claim, observation = snapshot.object, snapshot.observation
    late = running_ids(observation.instances if isinstance(observation, Observed) else observation.others)
    if late:
        events = duplicate_events(snapshot, late)
        return Plan(
            actions=terminate_actions(snapshot, late), events=events, requeue_after=snapshot.timings.poll_interval
        )
    if snapshot.owner is not OwnerState.ABSENT and not snapshot.is_superseded:
        return Plan(status=_kept(snapshot)) if claim.metadata.is_deleting else Plan()
    if Finalizer.CLAIM not in claim.metadata.finalizers:
        return Plan() if claim.metadata.is_deleting else Plan(actions=(Delete(CLOUD_INSTANCE.resource, claim),))
    if not claim.metadata.is_deleting:
        return Plan(actions=(Delete(CLOUD_INSTANCE.resource, claim),), requeue_after=0.0)
    rest = tuple(name for name in claim.metadata.finalizers if name != Finalizer.CLAIM)
    return Plan(actions=(SetFinalizers(CLOUD_INSTANCE.resource, claim, rest),))


def is_within(span: timedelta, since: datetime, now: datetime) -> bool:
    """Return whether `now` is within `span` of `since`.

    False if the clock was set back: otherwise the wait could be arbitrarily long.
    """
    return since <= now < since + span


def _cost(status: CloudInstanceStatus, end: str) -> float:
    return claim_status.accrued_cost(status, datetime.fromisoformat(end).timestamp())


def _kept(snapshot: Snapshot) -> CloudInstanceStatus:
    message = f"The claim is kept until {_beneficiary(snapshot)} is deleted, so that nothing is launched for it again."
    status = snapshot.object.status
    return set_condition(snapshot, status, Conditions.RELEASED, "False", Reason.OWNER_EXISTS, message)


def _last_seen(snapshot: Snapshot) -> Instance | None:
    """Return the last observation of the instance, which may not be in the status yet."""
    observation = snapshot.observation
    instances = observation.instances if isinstance(observation, Observed) else observation.before
    return next((instance for instance in instances if instance.id == snapshot.object.status.instance_id), None)


def _beneficiary(snapshot: Snapshot) -> str:
    for_ = snapshot.object.spec.owner
    return f"{for_.kind} {for_.namespace}/{for_.name}"
