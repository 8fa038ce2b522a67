"""How an instance ends: why, the question to the cloud, the cloud's word, the last record. Pure.

An end is believed when the cloud confirms it. What to end is decided by ids and states only, so that nothing else that
a cloud says of an instance, however strange, keeps it alive.
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

# As of a container that was killed, and of one that could not be started.
LOST_CODE = 137
UNSTARTED_CODE = 128
_ASK_AGAIN = timedelta(seconds=30)
# What a condition takes as a reason.
REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]{0,254}[A-Za-z0-9_])?")
_OWN_ENDS = {Reason.COMPLETED, "Error"}


class Verdict(msgspec.Struct, frozen=True):
    """Why an instance has to end."""

    reason: str
    message: str


_PROGRAM_ENDED = Verdict(Reason.COMPLETED, "Its program ended.")


def verdict(snapshot: Snapshot) -> Verdict | None:
    """Whether the instance has to end although its work goes on."""
    claim = snapshot.object
    if snapshot.owner is Owner.ABSENT:
        return Verdict(Reason.OWNER_GONE, f"{_beneficiary(snapshot)} does not exist any more.")
    if claim.metadata.is_deleting:
        return Verdict(Reason.DELETED, "The claim was deleted.")
    span = lifetime(claim.status)
    if span is not None and snapshot.lived >= span:
        return Verdict(Reason.DEADLINE_EXCEEDED, f"The {span:.0f} seconds that it was given are over.")
    return None


def lifetime(status: CloudInstanceStatus) -> float | None:
    """How many seconds the instance was given. Not until which moment: a clock may be set, and that ends nothing."""
    begun = status.launching.at if status.launching else status.start_time
    if status.deadline_time is None or begun is None:
        return None
    return (datetime.fromisoformat(status.deadline_time) - datetime.fromisoformat(begun)).total_seconds()


def underway(snapshot: Snapshot) -> Verdict | None:
    """An end that was begun is carried through, whatever its reason was."""
    if snapshot.object.status.state != "Terminating":
        return None
    told = conditions.find(snapshot.object.status.conditions, Conditions.ENDED)
    return Verdict(told.reason, told.message) if told else Verdict(Reason.DELETED, "It is being ended.")


def work_done(instance: Instance) -> Verdict | None:
    """A program that ended is no reason for a cloud to stop charging: some go on until they are told."""
    if instance.exit is None:
        return None
    reason = instance.exit.reason
    if reason in _OWN_ENDS or not REASON.fullmatch(reason):
        return _PROGRAM_ENDED
    return Verdict(reason, instance.exit.message or "The cloud ended its program.")


def has_just_finished(snapshot: Snapshot, instance: Instance) -> bool:
    """Its program ended a moment ago, and nobody has asked yet for the end of the instance that we know."""
    if instance.exit is None or instance.id in snapshot.asked or not snapshot.object.status.instance_id:
        return False
    return abs(snapshot.now.timestamp() - instance.exit.ended) < _ASK_AGAIN.total_seconds()


def living(instances: tuple[Instance, ...]) -> tuple[str, ...]:
    return tuple(instance.id for instance in instances if instance.state != "ended")


def ending(snapshot: Snapshot, end: Verdict, ids: tuple[str, ...], status: CloudInstanceStatus) -> Plan:
    """Ask the cloud, say it, and ask again until it confirms."""
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
    """Told once of each, when its end is first asked for."""
    cloud = snapshot.object.spec.provider
    return tuple(
        Note(Reason.REPLY_LOST, f"{cloud} made a second instance {id_} for one claim; it is ended.", warning=True)
        for id_ in ids
        if id_ not in snapshot.asked
    )


def ended(snapshot: Snapshot, instance: Instance, status: CloudInstanceStatus) -> Plan:
    """The cloud says so."""
    end = underway(snapshot) or verdict(snapshot) or work_done(instance)
    if status.exit is None:
        lost = Exit(code=LOST_CODE, reason=end.reason if end else Reason.LOST, message="The cloud ended the instance.")
        status = msgspec.structs.replace(status, exit=lost)
    if end is None:
        end = Verdict(Reason.LOST, "The cloud ended the instance, for example because it was preempted.")
    moment = render.time(instance.ended) or timestamp(snapshot.now)
    usd = render.usd(instance.usd_total)
    status = msgspec.structs.replace(status, finish_time=status.finish_time or moment, end_time=moment)
    usd = _cost(status, moment) if usd is None else usd
    return over(snapshot, end, usd=usd + _cost_of_doubles(snapshot, instance), status=status)


def _cost_of_doubles(snapshot: Snapshot, instance: Instance) -> float:
    seen = snapshot.sight.instances if isinstance(snapshot.sight, Seen) else snapshot.sight.others
    return sum(render.usd(other.usd_total) or 0.0 for other in seen if other.id != instance.id)


def vanished(snapshot: Snapshot) -> Plan:
    """Several complete listings and the instance's own page say that it is gone. Nothing was paid beyond its time."""
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
    exit_ = Exit(code=LOST_CODE, reason=Reason.LOST, message="The instance vanished at the cloud.")
    lost = msgspec.structs.replace(status, exit=exit_, finish_time=status.finish_time or moment)
    end = Verdict(Reason.LOST, "The instance vanished at the cloud, for example because it was preempted.")
    return over(snapshot, end, usd=usd, status=lost)


def over(snapshot: Snapshot, end: Verdict, *, usd: float, status: CloudInstanceStatus | None = None) -> Plan:
    """The end is certain: the last word, and the final cost, written once."""
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
    # Who deleted the claim, or what it was for, waits for it: the next look lets it go.
    return Plan(status=final, look_again=0.0)


def terminated(snapshot: Snapshot) -> Plan:
    """Nothing is paid any more. A straggler that shows up late ends; then the claim goes with what it was for."""
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
    """Not where the clock was set back since: that would be a wait of any length."""
    return since <= now < since + span


def _cost(status: CloudInstanceStatus, end: str) -> float:
    return render.cost(status, datetime.fromisoformat(end).timestamp())


def _kept(snapshot: Snapshot) -> CloudInstanceStatus:
    message = f"The claim is kept until {_beneficiary(snapshot)} is deleted, so that nothing is launched for it again."
    return render.told(snapshot, Conditions.RELEASED, "False", Reason.OWNER_STAYS, message)


def _last_seen(snapshot: Snapshot) -> Instance | None:
    """What this process saw before the cloud forgot the instance, and could not write down."""
    sight = snapshot.sight
    instances = sight.instances if isinstance(sight, Seen) else sight.before
    return next((instance for instance in instances if instance.id == snapshot.object.status.instance_id), None)


def _beneficiary(snapshot: Snapshot) -> str:
    for_ = snapshot.object.spec.for_
    return f"{for_.kind} {for_.namespace}/{for_.name}"
