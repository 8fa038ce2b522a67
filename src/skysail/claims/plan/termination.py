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
from skysail.claims.plan import status as render
from skysail.claims.snapshot import Owner, Seen, Snapshot
from skysail.claims.types import CLOUD_INSTANCE, CloudInstanceStatus, Exit
from skysail.cloud.account import Instance
from skysail.core import conditions
from skysail.core.actions import Action, Delete, End, Note, Plan, SetFinalizers

# Exit codes of a killed container, and of a container that could not be started.
LOST_CODE = 137
UNSTARTED_CODE = 128
_ASK_AGAIN = timedelta(seconds=30)
# Pattern of a condition's reason.
REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]{0,254}[A-Za-z0-9_])?")
_OWN_ENDS = {Reason.COMPLETED, "Error"}


class Verdict(msgspec.Struct, frozen=True):
    """Reason and message of a termination."""

    reason: str
    message: str


_PROGRAM_ENDED = Verdict(Reason.COMPLETED, "The program exited.")


def verdict(snapshot: Snapshot) -> Verdict | None:
    """Return why the instance has to be terminated although its program runs, or None."""
    claim = snapshot.object
    if snapshot.owner is Owner.ABSENT:
        return Verdict(Reason.OWNER_GONE, f"{_beneficiary(snapshot)} no longer exists.")
    if claim.metadata.is_deleting:
        return Verdict(Reason.DELETED, "The claim was deleted.")
    span = lifetime(claim.status)
    if span is not None and snapshot.lived >= span:
        return Verdict(Reason.DEADLINE_EXCEEDED, f"The instance reached its maximum lifetime of {span:.0f} seconds.")
    return None


def lifetime(status: CloudInstanceStatus) -> float | None:
    """Return the maximum lifetime in seconds.

    A duration, not a deadline: changing the wall clock must not terminate an instance.
    """
    begun = status.launching.at if status.launching else status.start_time
    if status.deadline_time is None or begun is None:
        return None
    return (datetime.fromisoformat(status.deadline_time) - datetime.fromisoformat(begun)).total_seconds()


def underway(snapshot: Snapshot) -> Verdict | None:
    """Return the reason of a termination in progress, which is always completed."""
    if snapshot.object.status.state != "Terminating":
        return None
    told = conditions.find(snapshot.object.status.conditions, Conditions.ENDED)
    return Verdict(told.reason, told.message) if told else Verdict(Reason.DELETED, "The instance is being terminated.")


def work_done(instance: Instance) -> Verdict | None:
    """Return the reason to terminate after the program exited: some clouds bill until the instance is terminated."""
    if instance.exit is None:
        return None
    reason = instance.exit.reason
    if reason in _OWN_ENDS or not REASON.fullmatch(reason):
        return _PROGRAM_ENDED
    return Verdict(reason, instance.exit.message or "The cloud terminated the program.")


def has_just_finished(snapshot: Snapshot, instance: Instance) -> bool:
    """Return whether the program exited just now and no termination of the known instance was requested yet."""
    if instance.exit is None or instance.id in snapshot.asked or not snapshot.object.status.instance_id:
        return False
    return abs(snapshot.now.timestamp() - instance.exit.ended) < _ASK_AGAIN.total_seconds()


def living(instances: tuple[Instance, ...]) -> tuple[str, ...]:
    return tuple(instance.id for instance in instances if instance.state != "ended")


def ending(snapshot: Snapshot, end: Verdict, ids: tuple[str, ...], status: CloudInstanceStatus) -> Plan:
    """Request the termination, record it in the status, and repeat the request until the cloud confirms."""
    told = render.told(snapshot, Conditions.ENDED, "False", end.reason, end.message, status=status)
    told = msgspec.structs.replace(told, state="Terminating")
    return Plan(actions=ends(snapshot, ids), status=told, look_again=snapshot.terms.tick)


def ends(snapshot: Snapshot, ids: tuple[str, ...]) -> tuple[Action, ...]:
    claim = snapshot.object
    grace = 0.0 if snapshot.owner is Owner.ABSENT else float(claim.spec.grace_seconds)
    patience = _ASK_AGAIN + timedelta(seconds=grace)
    return tuple(
        End(claim.spec.provider, id_, grace)
        for id_ in ids
        if id_ not in snapshot.asked or not is_within(patience, snapshot.asked[id_], snapshot.now)
    )


def spare_notes(snapshot: Snapshot, ids: tuple[str, ...]) -> tuple[Note, ...]:
    """Record one event for each duplicate, when its termination is first requested."""
    cloud = snapshot.object.spec.provider
    return tuple(
        Note(
            Reason.REPLY_LOST,
            f"{cloud} created a second instance {id_} for one claim; Skysail terminates it.",
            warning=True,
        )
        for id_ in ids
        if id_ not in snapshot.asked
    )


def ended(snapshot: Snapshot, instance: Instance, status: CloudInstanceStatus) -> Plan:
    """Finish a claim whose instance the cloud reports as terminated."""
    end = underway(snapshot) or verdict(snapshot) or work_done(instance)
    if status.exit is None:
        lost = Exit(
            code=LOST_CODE, reason=end.reason if end else Reason.LOST, message="The cloud terminated the instance."
        )
        status = msgspec.structs.replace(status, exit=lost)
    if end is None:
        end = Verdict(Reason.LOST, "The cloud terminated the instance, for example because it was preempted.")
    moment = render.time(instance.ended) or timestamp(snapshot.now)
    usd = render.usd(instance.usd_total)
    status = msgspec.structs.replace(status, finish_time=status.finish_time or moment, end_time=moment)
    usd = _cost(status, moment) if usd is None else usd
    return over(snapshot, end, usd=usd + _cost_of_doubles(snapshot, instance), status=status)


def _cost_of_doubles(snapshot: Snapshot, instance: Instance) -> float:
    seen = snapshot.sight.instances if isinstance(snapshot.sight, Seen) else snapshot.sight.others
    return sum(render.usd(other.usd_total) or 0.0 for other in seen if other.id != instance.id)


def vanished(snapshot: Snapshot) -> Plan:
    """Finish a claim whose instance is gone by several complete inventories and by a lookup.

    The cost is capped at the deadline, because the cloud bills no longer than that.
    """
    status, known = snapshot.object.status, _last_seen(snapshot)
    if known is not None:
        status = render.as_seen(snapshot, known)
        if known.state == "ended":
            return ended(snapshot, known, status)
    moment = min(timestamp(snapshot.now), status.deadline_time or timestamp(snapshot.now))
    usd = _cost(status, moment)
    end = underway(snapshot)
    if end is None and status.exit is not None:
        end = _PROGRAM_ENDED
    if end is not None:
        return over(snapshot, end, usd=usd, status=status)
    exit_ = Exit(code=LOST_CODE, reason=Reason.LOST, message="The instance disappeared from the cloud.")
    lost = msgspec.structs.replace(status, exit=exit_, finish_time=status.finish_time or moment)
    end = Verdict(Reason.LOST, "The instance disappeared from the cloud, for example because it was preempted.")
    return over(snapshot, end, usd=usd, status=lost)


def over(snapshot: Snapshot, end: Verdict, *, usd: float, status: CloudInstanceStatus | None = None) -> Plan:
    """Write the final status and cost, once, after a confirmed termination."""
    old = status or snapshot.object.status
    told = render.told(snapshot, Conditions.ENDED, "True", end.reason, end.message, status=old)
    launched = conditions.find(told.conditions, Conditions.LAUNCHED)
    if launched is not None and launched.status == "Unknown":
        told = render.told(snapshot, Conditions.LAUNCHED, "False", end.reason, end.message, status=told)
    final = msgspec.structs.replace(
        told,
        state="Terminated",
        launching=None,
        end_time=old.end_time or timestamp(snapshot.now),
        usd_total=usd if old.usd_total is None else old.usd_total,
    )
    # Reconcile again at once: a deletion of the claim or of its owner waits for the finalizer.
    return Plan(status=final, look_again=0.0)


def terminated(snapshot: Snapshot) -> Plan:
    """Plan a terminated claim: terminate instances that appear late, and delete the claim after its owner."""
    claim, sight = snapshot.object, snapshot.sight
    late = living(sight.instances if isinstance(sight, Seen) else sight.others)
    if late:
        notes = spare_notes(snapshot, late)
        return Plan(actions=ends(snapshot, late), notes=notes, look_again=snapshot.terms.tick)
    if snapshot.owner is not Owner.ABSENT and not snapshot.is_superseded:
        return Plan(status=_kept(snapshot)) if claim.metadata.is_deleting else Plan()
    if Finalizer.CLAIM not in claim.metadata.finalizers:
        return Plan() if claim.metadata.is_deleting else Plan(actions=(Delete(CLOUD_INSTANCE.resource, claim),))
    if not claim.metadata.is_deleting:
        return Plan(actions=(Delete(CLOUD_INSTANCE.resource, claim),), look_again=0.0)
    rest = tuple(name for name in claim.metadata.finalizers if name != Finalizer.CLAIM)
    return Plan(actions=(SetFinalizers(CLOUD_INSTANCE.resource, claim, rest),))


def is_within(span: timedelta, since: datetime, now: datetime) -> bool:
    """Return whether `now` is within `span` of `since`.

    False if the clock was set back: otherwise the wait could be arbitrarily long.
    """
    return since <= now < since + span


def _cost(status: CloudInstanceStatus, end: str) -> float:
    return render.cost(status, datetime.fromisoformat(end).timestamp())


def _kept(snapshot: Snapshot) -> CloudInstanceStatus:
    message = f"The claim is kept until {_beneficiary(snapshot)} is deleted, so that nothing is launched for it again."
    return render.told(snapshot, Conditions.RELEASED, "False", Reason.OWNER_STAYS, message)


def _last_seen(snapshot: Snapshot) -> Instance | None:
    """Return the last observation of the instance, which may not be in the status yet."""
    sight = snapshot.sight
    instances = sight.instances if isinstance(sight, Seen) else sight.before
    return next((instance for instance in instances if instance.id == snapshot.object.status.instance_id), None)


def _beneficiary(snapshot: Snapshot) -> str:
    for_ = snapshot.object.spec.for_
    return f"{for_.kind} {for_.namespace}/{for_.name}"
