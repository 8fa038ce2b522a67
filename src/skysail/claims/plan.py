"""The launch protocol: the only place that decides to pay, and to stop paying. Pure.

A claim is written first. Whoever puts an unused nonce into it, against its version, may call the cloud once. An answer
that is lost makes the claim Unknown, and only listings lead out of that. An end is believed when the cloud confirms it,
and the claim stays as long as what it is for, so that nothing is launched for it a second time.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from skysail.base.names import Condition as Conditions
from skysail.base.names import Finalizer, Reason
from skysail.base.timestamps import timestamp
from skysail.claims import render
from skysail.claims.snapshot import Call, Owner, Seen, Snapshot
from skysail.claims.types import CLOUD_INSTANCE, CloudInstanceStatus, Exit, Launching
from skysail.cloud.errors import NoCapacity, ProviderError, Refused, Throttled, Unsupported
from skysail.cloud.instances import Instance
from skysail.core import conditions
from skysail.core.actions import Action, Delete, End, Launch, Note, Plan, SetFinalizers

LOST_CODE = 137
_ASK_AGAIN = timedelta(seconds=30)


class Verdict(msgspec.Struct, frozen=True):
    """Why an instance has to end."""

    reason: str
    message: str


_PROGRAM_ENDED = Verdict(Reason.COMPLETED, "Its program ended.")


def plan(snapshot: Snapshot) -> Plan:
    status = snapshot.object.status
    if not snapshot.has_account and status.state not in {None, "Claimed", "Terminated"}:
        return _without_account(snapshot)
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
    return render.told(snapshot, Conditions.LAUNCHED, "Unknown", Reason.RECONCILE_FAILED, why)


def verdict(snapshot: Snapshot) -> Verdict | None:
    """Whether the instance has to end although its work goes on."""
    claim = snapshot.object
    if snapshot.owner is Owner.ABSENT:
        what = f"{claim.spec.for_.kind} {claim.spec.for_.namespace}/{claim.spec.for_.name}"
        return Verdict(Reason.OWNER_GONE, f"{what} does not exist any more.")
    if claim.metadata.is_deleting:
        return Verdict(Reason.DELETED, "The claim was deleted.")
    if claim.status.deadline_time and datetime.fromisoformat(claim.status.deadline_time) <= snapshot.now:
        return Verdict(Reason.DEADLINE_EXCEEDED, f"Its time was over at {claim.status.deadline_time}.")
    return None


def _without_account(snapshot: Snapshot) -> Plan:
    """Somebody may be paying, and nobody here can look or end it. It must not be forgotten."""
    claim = snapshot.object
    what = f"instance {claim.status.instance_id}" if claim.status.instance_id else "an instance that may be there"
    message = f"{snapshot.outage} Until then {what} can be ended at the cloud only."
    status = render.told(snapshot, Conditions.ENDED, "Unknown", Reason.NO_ACCOUNT, message)
    return Plan(status=status)


def _claimed(snapshot: Snapshot) -> Plan:
    """Nobody has called the cloud for this claim, or it is certain that nothing came of it."""
    if isinstance(snapshot.sight, Seen):
        return _mirror(snapshot, snapshot.sight.instances)
    if _is_calling(snapshot):
        return Plan(look_again=snapshot.terms.tick)  # it is being broken off, and may still succeed
    return _unlaunched(snapshot)


def _unlaunched(snapshot: Snapshot) -> Plan:
    """The ticket first, against the version of the claim; and when the claim carries it, the call."""
    end = verdict(snapshot)
    if end is not None:
        return _over(snapshot, end.reason, f"{end.message} Nothing was launched.", usd=render.NEVER_PAID)
    wait = _obstacle(snapshot)
    if wait is not None:
        return _waiting(snapshot, *wait)
    claim, order = snapshot.object, snapshot.order
    assert order is not None, "without one there is an obstacle"
    if claim.status.launching is not None:
        launch = Launch(claim.spec.provider, CLOUD_INSTANCE.resource, claim, order)
        return Plan(actions=(launch,), look_again=snapshot.terms.tick)
    launching = Launching(by=snapshot.identity, nonce=snapshot.ticket, at=timestamp(snapshot.now))
    status = render.told(snapshot, Conditions.LAUNCHED, "Unknown", Reason.LAUNCHING, "The cloud is being called.")
    # The cloud counts from the call on, and so do we: time spent waiting for capacity is not lived.
    deadline = timestamp(snapshot.now + timedelta(seconds=order.seconds))
    status = msgspec.structs.replace(status, state="Launching", launching=launching, deadline_time=deadline)
    return Plan(status=status, look_again=0.0)


def _obstacle(snapshot: Snapshot) -> tuple[Reason, str, float] | None:
    """What a launch waits for, and when time alone may have removed it."""
    tick = snapshot.terms.tick
    if snapshot.outage:
        reason = Reason.CLOUD_UNREACHABLE if snapshot.has_account else Reason.NO_ACCOUNT
        return reason, f"{snapshot.outage} It is launched when the cloud answers again.", tick
    if snapshot.order is None:
        return Reason.ORDER_AWAITED, "The node has not said yet what to run.", tick
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
    if call is None or call.failed is None or not _is_within(call.pause, call.failed, snapshot.now):
        return None
    reason = Reason.THROTTLED if isinstance(call.error, Throttled) else Reason.NO_CAPACITY
    left = call.failed + call.pause - snapshot.now
    return reason, f"{call.error} Asked again later.", left.total_seconds()


def _launching(snapshot: Snapshot) -> Plan:
    """Somebody may have called. If it is us, we know; if not, only listings can tell."""
    nonce = snapshot.object.status.launching.nonce if snapshot.object.status.launching else ""
    mine = snapshot.call if snapshot.call is not None and snapshot.call.nonce == nonce else None
    if isinstance(snapshot.sight, Seen) and not (mine and mine.is_under_way):
        return _mirror(snapshot, snapshot.sight.instances)
    if mine is not None:
        return _called(snapshot, mine)
    if nonce == snapshot.ticket:
        return _unlaunched(snapshot)  # nobody has used it, and nobody but us can
    return _in_doubt(snapshot, "The operator that called the cloud ended before it wrote down the answer.")


def _called(snapshot: Snapshot, call: Call) -> Plan:
    if call.instance is not None:
        return _mirror(snapshot, (call.instance,))
    if call.error is None:
        if verdict(snapshot) is None:
            return Plan(look_again=snapshot.terms.tick)
        return _in_doubt(snapshot, "The launch was broken off, because nobody wants it any more.")
    return _failed(snapshot, call.error)


def _failed(snapshot: Snapshot, error: ProviderError) -> Plan:
    """Only what the contract says to have made nothing is believed to have made nothing."""
    match error:
        case NoCapacity() | Throttled():
            reason = Reason.THROTTLED if isinstance(error, Throttled) else Reason.NO_CAPACITY
            return Plan(status=_back(snapshot, reason, f"{error} Asked again later."), look_again=0.0)
        case Refused() | Unsupported():
            return _over(snapshot, Reason.REFUSED, str(error), usd=render.NEVER_PAID)
        case _:
            return _in_doubt(snapshot, str(error))


def _in_doubt(snapshot: Snapshot, why: str) -> Plan:
    message = f"{why} Whether there is an instance is decided by the next listings; until then nothing is launched."
    status = render.told(snapshot, Conditions.LAUNCHED, "Unknown", Reason.REPLY_LOST, message)
    return Plan(
        status=msgspec.structs.replace(status, state="Unknown"),
        notes=(Note(Reason.REPLY_LOST, message, warning=True),),
        look_again=snapshot.terms.tick,
    )


def _unknown(snapshot: Snapshot) -> Plan:
    if isinstance(snapshot.sight, Seen):
        return _mirror(snapshot, snapshot.sight.instances)
    if _is_calling(snapshot) or not _is_surely_absent(snapshot):
        return Plan(look_again=snapshot.terms.tick)
    end = verdict(snapshot)
    if end is not None:
        return _over(snapshot, end.reason, f"{end.message} No instance ever appeared.", usd=render.NEVER_PAID)
    message = "No listing showed an instance for longer than the cloud takes to show one, so it is launched anew."
    return Plan(status=_back(snapshot, Reason.NEVER_APPEARED, message), look_again=0.0)


def _alive(snapshot: Snapshot) -> Plan:
    """There is an instance, and we know its id."""
    if isinstance(snapshot.sight, Seen):
        return _mirror(snapshot, snapshot.sight.instances)
    if _is_surely_absent(snapshot) and snapshot.sight.is_gone:
        return _vanished(snapshot)
    return _unseen(snapshot)


def _unseen(snapshot: Snapshot) -> Plan:
    """Nobody says now that it is there, or that it is gone. It can be ended all the same, by its id."""
    end = _underway(snapshot) or verdict(snapshot)
    if end is None:
        return Plan(look_again=snapshot.terms.tick)
    return _ending(snapshot, end, (snapshot.object.status.instance_id,), snapshot.object.status)


def _vanished(snapshot: Snapshot) -> Plan:
    """Several complete listings and the instance's own page say that it is gone."""
    status = _as_last_seen(snapshot)
    end = _underway(snapshot)
    if end is None and status.exit is not None:
        end = _PROGRAM_ENDED
    if end is not None:
        return _over(snapshot, end.reason, end.message, status=status)
    exit_ = Exit(code=LOST_CODE, reason=Reason.LOST, message="The instance vanished at the cloud.")
    lost = msgspec.structs.replace(status, exit=exit_, finish_time=status.finish_time or timestamp(snapshot.now))
    message = "The instance vanished at the cloud, for example because it was preempted."
    return _over(snapshot, Reason.LOST, message, status=lost)


def _as_last_seen(snapshot: Snapshot) -> CloudInstanceStatus:
    """With what this process saw before the cloud forgot the instance, and could not write down."""
    status, sight = snapshot.object.status, snapshot.sight
    instances = sight.instances if isinstance(sight, Seen) else sight.before
    known = next((instance for instance in instances if instance.id == status.instance_id), None)
    return status if known is None else render.as_seen(snapshot, known)


def _mirror(snapshot: Snapshot, instances: tuple[Instance, ...]) -> Plan:
    """Show the oldest instance that lives, and end the others: one claim pays for one."""
    kept = _kept(snapshot.object.status.instance_id, instances)
    if kept is None:
        return _unseen(snapshot)
    spare = tuple(instance.id for instance in instances if instance.state != "ended" and instance is not kept)
    status = render.as_seen(snapshot, kept)
    if kept.state == "ended":
        return _ended(snapshot, kept, status)
    end = _underway(snapshot) or verdict(snapshot)
    if end is None and _has_just_finished(snapshot, kept):
        # Most clouds confirm at once, and the end is one write then instead of two.
        return Plan(actions=_ends(snapshot, (kept.id, *spare)), look_again=snapshot.terms.tick)
    end = end or _work_done(kept)
    if end is not None:
        return _ending(snapshot, end, (kept.id, *spare), status)
    actions = _ends(snapshot, spare)
    notes = tuple(_spare_note(snapshot, id_) for id_ in spare if id_ not in snapshot.asked)
    return Plan(actions=actions, status=status, notes=notes, look_again=_next_look(snapshot))


def _has_just_finished(snapshot: Snapshot, instance: Instance) -> bool:
    """Its program ended a moment ago, and nobody has asked yet for the end of the instance that we know."""
    if instance.exit is None or instance.id in snapshot.asked or not snapshot.object.status.instance_id:
        return False
    return snapshot.now.timestamp() - instance.exit.ended < _ASK_AGAIN.total_seconds()


def _kept(known: str, instances: tuple[Instance, ...]) -> Instance | None:
    """The oldest that lives, else the one that we know. That another one ended says nothing of ours."""
    living = (instance for instance in instances if instance.state != "ended")
    ours = (instance for instance in instances if known in {"", instance.id})
    return next(living, None) or next(ours, None)


def _work_done(instance: Instance) -> Verdict | None:
    """A program that ended is no reason for a cloud to stop charging: some go on until they are told."""
    return _PROGRAM_ENDED if instance.exit is not None else None


def _underway(snapshot: Snapshot) -> Verdict | None:
    """An end that was begun is carried through, whatever its reason was."""
    if snapshot.object.status.state != "Terminating":
        return None
    told = conditions.find(snapshot.object.status.conditions, Conditions.ENDED)
    return Verdict(told.reason, told.message) if told else Verdict(Reason.DELETED, "It is being ended.")


def _ending(snapshot: Snapshot, end: Verdict, ids: tuple[str, ...], status: CloudInstanceStatus) -> Plan:
    """Ask the cloud, say it, and ask again until it confirms."""
    told = render.told(snapshot, Conditions.ENDED, "False", end.reason, end.message, status=status)
    told = msgspec.structs.replace(told, state="Terminating")
    return Plan(actions=_ends(snapshot, ids), status=told, look_again=snapshot.terms.tick)


def _ends(snapshot: Snapshot, ids: tuple[str, ...]) -> tuple[Action, ...]:
    claim = snapshot.object
    grace = 0.0 if snapshot.owner is Owner.ABSENT else float(claim.spec.grace_seconds)
    patience = _ASK_AGAIN + timedelta(seconds=grace)
    return tuple(
        End(claim.spec.provider, id_, grace)
        for id_ in ids
        if id_ not in snapshot.asked or not _is_within(patience, snapshot.asked[id_], snapshot.now)
    )


def _ended(snapshot: Snapshot, instance: Instance, status: CloudInstanceStatus) -> Plan:
    end = _underway(snapshot) or verdict(snapshot) or _work_done(instance)
    if status.exit is None:
        lost = Exit(code=LOST_CODE, reason=end.reason if end else Reason.LOST, message="The cloud ended the instance.")
        status = msgspec.structs.replace(status, exit=lost)
    if end is None:
        end = Verdict(Reason.LOST, "The cloud ended the instance, for example because it was preempted.")
    ended = instance.ended if instance.ended is not None else snapshot.now.timestamp()
    usd = instance.usd_total if instance.usd_total is not None else render.cost(status, ended)
    status = msgspec.structs.replace(
        status, finish_time=status.finish_time or render.time(ended), end_time=render.time(ended)
    )
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
    told = render.told(snapshot, Conditions.ENDED, "True", reason, message, status=old)
    final = msgspec.structs.replace(
        told,
        state="Terminated",
        launching=None,
        end_time=old.end_time or timestamp(snapshot.now),
        usd_total=render.cost(old, snapshot.now.timestamp()) if total is None else total,
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


def _waiting(snapshot: Snapshot, reason: Reason, message: str, seconds: float) -> Plan:
    return Plan(status=_back(snapshot, reason, message), look_again=max(seconds, 1.0))


def _back(snapshot: Snapshot, reason: Reason, message: str) -> CloudInstanceStatus:
    """To the beginning: it is certain that the cloud has nothing of this claim."""
    status = render.told(snapshot, Conditions.LAUNCHED, "False", reason, message)
    return msgspec.structs.replace(status, state="Claimed", launching=None, deadline_time=None)


def _is_surely_absent(snapshot: Snapshot) -> bool:
    sight, terms = snapshot.sight, snapshot.terms
    return not isinstance(sight, Seen) and sight.listings >= terms.absences and sight.seconds > terms.visibility


def _is_calling(snapshot: Snapshot) -> bool:
    return snapshot.call is not None and snapshot.call.is_under_way


def _is_within(span: timedelta, since: datetime, now: datetime) -> bool:
    """Not where the clock was set back since: that would be a wait of any length."""
    return since <= now < since + span


def _next_look(snapshot: Snapshot) -> float | None:
    """The deadline is ours to keep, too; everything else is told by the next listing."""
    deadline = snapshot.object.status.deadline_time
    if deadline is None:
        return None
    return max(1.0, (datetime.fromisoformat(deadline) - snapshot.now).total_seconds())


def _spare_note(snapshot: Snapshot, id_: str) -> Note:
    provider = snapshot.object.spec.provider
    return Note(Reason.REPLY_LOST, f"{provider} made a second instance {id_} for one claim; it is ended.", warning=True)
