"""The launch protocol: the only place that decides to pay, and to stop paying. Pure.

A claim is written first. Whoever puts an unused nonce into it, against its version, may call the cloud once. An answer
that is lost makes the claim Unknown, and only listings lead out of that. An end is believed when the cloud confirms it,
and the claim stays as long as what it is for, so that nothing is launched for it a second time.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from skysail.base import clock
from skysail.base.names import Condition as Conditions
from skysail.base.names import Finalizer, Reason
from skysail.claims.snapshot import Call, Owner, Seen, Snapshot
from skysail.claims.types import CLOUD_INSTANCE, CloudInstance, CloudInstanceStatus, Exit, Launching
from skysail.cloud.errors import NoCapacity, ProviderError, Throttled, Unknown
from skysail.cloud.instances import Instance
from skysail.core import conditions
from skysail.core.actions import Action, Delete, End, Launch, Note, Plan, SetFinalizers
from skysail.kube.fields import Condition

LOST_CODE = 137
_ASK_AGAIN = timedelta(seconds=30)
_NEVER_PAID = 0.0


class Verdict(msgspec.Struct, frozen=True):
    """Why an instance has to end."""

    reason: str
    message: str


def plan(snapshot: Snapshot) -> Plan:
    status = snapshot.object.status
    match status.state:
        case None | "Claimed":
            return _claimed(snapshot)
        case "Launching":
            return _launching(snapshot)
        case "Unknown":
            return _unknown(snapshot)
        case "Terminated":
            return _terminated(snapshot)
        case _:
            return _alive(snapshot)


def refused(snapshot: Snapshot, why: str) -> CloudInstanceStatus:
    """The API server refused a write: the state stands, and the claim says why nothing moves."""
    return _told(snapshot, Conditions.LAUNCHED, "Unknown", Reason.RECONCILE_FAILED, why)


def verdict(snapshot: Snapshot) -> Verdict | None:
    """Whether the instance has to end although its work goes on."""
    claim = snapshot.object
    if snapshot.owner is Owner.ABSENT:
        what = f"{claim.spec.for_.kind} {claim.spec.for_.namespace}/{claim.spec.for_.name}"
        return Verdict(Reason.OWNER_GONE, f"{what} does not exist any more.")
    if claim.metadata.is_deleting:
        return Verdict(Reason.DELETED, "The claim was deleted.")
    if claim.spec.deadline_time and datetime.fromisoformat(claim.spec.deadline_time) <= snapshot.now:
        return Verdict(Reason.DEADLINE_EXCEEDED, f"Its time was over at {claim.spec.deadline_time}.")
    return None


def _claimed(snapshot: Snapshot) -> Plan:
    """Nobody has called the cloud for this claim, or it is certain that nothing came of it."""
    if isinstance(snapshot.sight, Seen):
        return _mirror(snapshot, snapshot.sight.instances)
    end = verdict(snapshot)
    if end is not None:
        return _over(snapshot, end.reason, f"{end.message} Nothing was launched.", usd=_NEVER_PAID)
    wait = _obstacle(snapshot)
    if wait is not None:
        return _waiting(snapshot, *wait)
    launching = Launching(by=snapshot.identity, nonce=snapshot.ticket, at=clock.timestamp(snapshot.now))
    status = _told(snapshot, Conditions.LAUNCHED, "Unknown", Reason.LAUNCHING, "The cloud is being called.")
    return Plan(status=msgspec.structs.replace(status, state="Launching", launching=launching), look_again=0.0)


def _obstacle(snapshot: Snapshot) -> tuple[Reason, str, float] | None:
    """What a launch waits for, and when time alone may have removed it."""
    tick = snapshot.terms.tick
    if snapshot.order is None:
        return Reason.ORDER_AWAITED, "The node has not said yet what to run.", tick
    if snapshot.outage:
        return Reason.CLOUD_UNREACHABLE, f"{snapshot.outage} It is launched when the cloud answers again.", tick
    if snapshot.rival:
        return Reason.OLDER_STILL_RUNNING, snapshot.rival, tick
    pause = _pause(snapshot)
    if pause is not None:
        return pause
    if snapshot.brake:
        return Reason.LAUNCHES_BRAKED, snapshot.brake, tick
    return None


def _pause(snapshot: Snapshot) -> tuple[Reason, str, float] | None:
    """What the last call brought, until it is time for the next one."""
    call = snapshot.call
    if call is None or call.error is None or call.retry_at is None or call.retry_at <= snapshot.now:
        return None
    reason = Reason.THROTTLED if isinstance(call.error, Throttled) else Reason.NO_CAPACITY
    return reason, f"{call.error} Asked again later.", (call.retry_at - snapshot.now).total_seconds()


def _launching(snapshot: Snapshot) -> Plan:
    """Somebody may have called. If it is us, we know; if not, only listings can tell."""
    launching = snapshot.object.status.launching
    call = snapshot.call
    mine = call is not None and launching is not None and call.nonce == launching.nonce
    if isinstance(snapshot.sight, Seen) and not (mine and call is not None and call.is_under_way):
        return _mirror(snapshot, snapshot.sight.instances)
    if mine and call is not None:
        return _called(snapshot, call)
    if launching is not None and launching.nonce == snapshot.ticket:
        return _call(snapshot)
    return _in_doubt(snapshot, "The operator that called the cloud ended before it wrote down the answer.")


def _call(snapshot: Snapshot) -> Plan:
    """The claim carries our unused nonce: nobody has called, and nobody but us may."""
    if verdict(snapshot) is not None or snapshot.order is None:
        return Plan(status=_back(snapshot, Reason.DELETED, "Nothing was launched."), look_again=0.0)
    launch = Launch(snapshot.object.spec.provider, CLOUD_INSTANCE.resource, snapshot.object, snapshot.order)
    return Plan(actions=(launch,), look_again=snapshot.terms.tick)


def _called(snapshot: Snapshot, call: Call) -> Plan:
    if call.instance is not None:
        return _mirror(snapshot, (call.instance,))
    if call.error is None:
        if verdict(snapshot) is None:
            return Plan(look_again=snapshot.terms.tick)
        return _in_doubt(snapshot, "The launch was broken off, because nobody wants it any more.")
    return _failed(snapshot, call.error)


def _failed(snapshot: Snapshot, error: ProviderError) -> Plan:
    match error:
        case Unknown():
            return _in_doubt(snapshot, str(error))
        case NoCapacity() | Throttled():
            reason = Reason.THROTTLED if isinstance(error, Throttled) else Reason.NO_CAPACITY
            return Plan(status=_back(snapshot, reason, f"{error} Asked again later."), look_again=0.0)
        case _:
            return _over(snapshot, Reason.REFUSED, str(error), usd=_NEVER_PAID)


def _in_doubt(snapshot: Snapshot, why: str) -> Plan:
    message = f"{why} Whether there is an instance is decided by the next listings; until then nothing is launched."
    status = _told(snapshot, Conditions.LAUNCHED, "Unknown", Reason.REPLY_LOST, message)
    return Plan(
        status=msgspec.structs.replace(status, state="Unknown"),
        notes=(Note(Reason.REPLY_LOST, message, warning=True),),
        look_again=snapshot.terms.tick,
    )


def _unknown(snapshot: Snapshot) -> Plan:
    if isinstance(snapshot.sight, Seen):
        return _mirror(snapshot, snapshot.sight.instances)
    if not _is_surely_absent(snapshot):
        return Plan(look_again=snapshot.terms.tick)
    end = verdict(snapshot)
    if end is not None:
        return _over(snapshot, end.reason, f"{end.message} No instance ever appeared.", usd=_NEVER_PAID)
    message = "No listing showed an instance for longer than the cloud takes to show one, so it is launched anew."
    return Plan(status=_back(snapshot, Reason.NEVER_APPEARED, message), look_again=0.0)


def _alive(snapshot: Snapshot) -> Plan:
    """There is an instance, and we know its id."""
    if isinstance(snapshot.sight, Seen):
        return _mirror(snapshot, snapshot.sight.instances)
    if _is_surely_absent(snapshot) and snapshot.sight.is_gone:
        return _vanished(snapshot)
    end = verdict(snapshot)
    if end is None:
        return Plan(look_again=snapshot.terms.tick)
    return _ending(snapshot, end, (snapshot.object.status.instance_id,), snapshot.object.status)


def _vanished(snapshot: Snapshot) -> Plan:
    """Several complete listings and the instance's own page say that it is gone."""
    status = snapshot.object.status
    if status.state == "Terminating":
        return _over(snapshot, Reason.DELETED, "The cloud does not list it any more.")
    now = clock.timestamp(snapshot.now)
    exit_ = status.exit or Exit(code=LOST_CODE, reason=Reason.LOST, message="The instance vanished at the cloud.")
    lost = msgspec.structs.replace(status, exit=exit_, finish_time=status.finish_time or now)
    message = "The instance vanished at the cloud, for example because it was preempted."
    return _over(snapshot, Reason.LOST, message, status=lost)


def _mirror(snapshot: Snapshot, instances: tuple[Instance, ...]) -> Plan:
    """Show the oldest instance that lives, and end the others: one claim pays for one."""
    living = [instance for instance in instances if instance.state != "ended"]
    kept = living[0] if living else instances[0]
    spare = tuple(instance.id for instance in living if instance is not kept)
    status = _as_seen(snapshot, kept)
    if kept.state == "ended":
        return _ended(snapshot, kept, status)
    end = verdict(snapshot) or _work_done(kept) or _underway(snapshot)
    if end is not None:
        return _ending(snapshot, end, (kept.id, *spare), status)
    actions = _ends(snapshot, spare)
    notes = tuple(_spare_note(snapshot, id_) for id_ in spare if id_ not in snapshot.asked)
    return Plan(actions=actions, status=status, notes=notes, look_again=_next_look(snapshot))


def _as_seen(snapshot: Snapshot, instance: Instance) -> CloudInstanceStatus:
    """The status with what the cloud says of the instance. What was told before is not taken back."""
    status = _told(snapshot, Conditions.LAUNCHED, "True", Reason.LAUNCHED, "The cloud has made the instance.")
    runs = instance.state == "running" or instance.started is not None
    exit_ = instance.exit
    return msgspec.structs.replace(
        status,
        state=status.state if status.state in {"Running", "Terminating"} else ("Running" if runs else "Starting"),
        instance_id=instance.id,
        usd_per_hour=status.usd_per_hour if status.usd_per_hour is not None else instance.usd_per_hour,
        region=instance.region,
        start_time=status.start_time or _time(instance.created),
        ready_time=status.ready_time or _time(instance.started),
        finish_time=status.finish_time or _time(exit_.ended if exit_ else None),
        exit=status.exit or (Exit(code=exit_.code, reason=exit_.reason, message=exit_.message) if exit_ else None),
    )


def _work_done(instance: Instance) -> Verdict | None:
    """A program that ended is no reason for a cloud to stop charging: some go on until they are told."""
    return Verdict(Reason.COMPLETED, "Its program ended.") if instance.exit is not None else None


def _underway(snapshot: Snapshot) -> Verdict | None:
    """An end that was begun is carried through, whatever its reason was."""
    if snapshot.object.status.state != "Terminating":
        return None
    told = conditions.find(snapshot.object.status.conditions, Conditions.ENDED)
    return Verdict(told.reason, told.message) if told else Verdict(Reason.DELETED, "It is being ended.")


def _ending(snapshot: Snapshot, end: Verdict, ids: tuple[str, ...], status: CloudInstanceStatus) -> Plan:
    """Say it, then ask the cloud, and ask again until it confirms."""
    told = _with(snapshot, status, Conditions.ENDED, "False", end.reason, end.message)
    told = msgspec.structs.replace(told, state="Terminating")
    return Plan(actions=_ends(snapshot, ids), status=told, look_again=snapshot.terms.tick)


def _ends(snapshot: Snapshot, ids: tuple[str, ...]) -> tuple[Action, ...]:
    claim = snapshot.object
    grace = 0.0 if snapshot.owner is Owner.ABSENT else float(claim.spec.grace_seconds)
    patience = _ASK_AGAIN + timedelta(seconds=grace)
    return tuple(
        End(claim.spec.provider, id_, grace)
        for id_ in ids
        if id_ not in snapshot.asked or snapshot.asked[id_] + patience <= snapshot.now
    )


def _ended(snapshot: Snapshot, instance: Instance, status: CloudInstanceStatus) -> Plan:
    end = verdict(snapshot) or _underway(snapshot) or _work_done(instance)
    if status.exit is None:
        lost = Exit(code=LOST_CODE, reason=end.reason if end else Reason.LOST, message="The cloud ended the instance.")
        status = msgspec.structs.replace(status, exit=lost)
    if end is None:
        end = Verdict(Reason.LOST, "The cloud ended the instance, for example because it was preempted.")
    ended = instance.ended if instance.ended is not None else snapshot.now.timestamp()
    usd = instance.usd_total if instance.usd_total is not None else cost(status, ended)
    status = msgspec.structs.replace(status, finish_time=status.finish_time or _time(ended), end_time=_time(ended))
    return _over(snapshot, end.reason, end.message, usd=usd, status=status)


def _over(
    snapshot: Snapshot,
    reason: str,
    message: str,
    *,
    usd: float | None = None,
    status: CloudInstanceStatus | None = None,
) -> Plan:
    """The end is certain: the last word, and the final cost, written once."""
    old = status or snapshot.object.status
    total = old.usd_total if old.usd_total is not None else usd
    told = _with(snapshot, old, Conditions.ENDED, "True", reason, message)
    final = msgspec.structs.replace(
        told,
        state="Terminated",
        launching=None,
        end_time=old.end_time or clock.timestamp(snapshot.now),
        usd_total=cost(old, snapshot.now.timestamp()) if total is None else total,
    )
    # Who deleted the claim, or what it was for, waits for it: the next look lets it go.
    return Plan(status=final, look_again=0.0)


def _terminated(snapshot: Snapshot) -> Plan:
    """Nothing is paid any more. A straggler that shows up late ends; then the claim goes with what it was for."""
    claim = snapshot.object
    if isinstance(snapshot.sight, Seen):
        late = tuple(instance.id for instance in snapshot.sight.instances if instance.state != "ended")
        if late:
            notes = tuple(_spare_note(snapshot, id_) for id_ in late if id_ not in snapshot.asked)
            return Plan(actions=_ends(snapshot, late), notes=notes, look_again=snapshot.terms.tick)
    if snapshot.owner is not Owner.ABSENT and not snapshot.is_superseded:
        return Plan()
    if Finalizer.CLAIM not in claim.metadata.finalizers:
        return Plan() if claim.metadata.is_deleting else Plan(actions=(Delete(CLOUD_INSTANCE.resource, claim),))
    if not claim.metadata.is_deleting:
        return Plan(actions=(Delete(CLOUD_INSTANCE.resource, claim),), look_again=0.0)
    rest = tuple(name for name in claim.metadata.finalizers if name != Finalizer.CLAIM)
    return Plan(actions=(SetFinalizers(CLOUD_INSTANCE.resource, claim, rest),))


def cost(status: CloudInstanceStatus, end: float) -> float:
    """What an instance has cost at its price, from the moment when the cloud began to charge."""
    if status.start_time is None or status.usd_per_hour is None:
        return _NEVER_PAID
    seconds = end - datetime.fromisoformat(status.start_time).timestamp()
    return round(status.usd_per_hour * max(0.0, seconds) / 3600, 6)


def _waiting(snapshot: Snapshot, reason: Reason, message: str, seconds: float) -> Plan:
    return Plan(status=_back(snapshot, reason, message), look_again=max(seconds, 1.0))


def _back(snapshot: Snapshot, reason: Reason, message: str) -> CloudInstanceStatus:
    """To the beginning: it is certain that the cloud has nothing of this claim."""
    status = _told(snapshot, Conditions.LAUNCHED, "False", reason, message)
    return msgspec.structs.replace(status, state="Claimed", launching=None)


def _is_surely_absent(snapshot: Snapshot) -> bool:
    sight, terms = snapshot.sight, snapshot.terms
    return not isinstance(sight, Seen) and sight.listings >= terms.absences and sight.seconds > terms.visibility


def _next_look(snapshot: Snapshot) -> float | None:
    """The deadline is ours to keep, too; everything else is told by the next listing."""
    deadline = snapshot.object.spec.deadline_time
    if deadline is None:
        return None
    return max(1.0, (datetime.fromisoformat(deadline) - snapshot.now).total_seconds())


def _spare_note(snapshot: Snapshot, id_: str) -> Note:
    provider = snapshot.object.spec.provider
    return Note(Reason.REPLY_LOST, f"{provider} made a second instance {id_} for one claim; it is ended.", warning=True)


def _told(snapshot: Snapshot, type_: Conditions, value: str, reason: str, message: str) -> CloudInstanceStatus:
    return _with(snapshot, snapshot.object.status, type_, value, reason, message)


def _with(
    snapshot: Snapshot, status: CloudInstanceStatus, type_: Conditions, value: str, reason: str, message: str
) -> CloudInstanceStatus:
    claim: CloudInstance = snapshot.object
    new = Condition(
        type=type_,
        status=value,  # type: ignore[arg-type]  # one of the three that callers name
        last_transition_time=clock.timestamp(snapshot.now),
        reason=reason,
        message=message,
        observed_generation=claim.metadata.generation,
    )
    return msgspec.structs.replace(
        status,
        conditions=conditions.with_condition(status.conditions, new),
        observed_generation=claim.metadata.generation,
    )


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else clock.timestamp(clock.from_seconds(seconds))
