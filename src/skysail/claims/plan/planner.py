"""The launch protocol: the only place that decides to pay, and to stop paying. Pure.

A claim is written first. Whoever puts an unused nonce into it, against its version, may call the cloud once. An answer
that is lost makes the claim Unknown, and only listings lead out of that. An id that is known is given up only for one
that is listed beside it, or when its instance is gone. The claim stays as long as what it is for, so that nothing is
launched for it a second time.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from skysail.base.names import Condition as Conditions
from skysail.base.names import Reason
from skysail.base.timestamps import timestamp
from skysail.claims.plan import status as render
from skysail.claims.plan import termination
from skysail.claims.plan.termination import Verdict, verdict
from skysail.claims.snapshot import Call, Seen, Snapshot, Unseen
from skysail.claims.types import CLOUD_INSTANCE, CloudInstanceStatus, Launching
from skysail.cloud.account import Instance, oldest_first
from skysail.cloud.errors import NoCapacity, ProviderError, Refused, Throttled, Unsupported
from skysail.core.actions import Launch, Note, Plan


def plan(snapshot: Snapshot) -> Plan:
    snapshot = _without_strangers(snapshot)
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
            return termination.terminated(snapshot)
        case _:
            return _alive(snapshot)


def refused(snapshot: Snapshot, why: Note) -> Plan:
    """The API server refused a write: the state stands, and the claim says why nothing moves."""
    shown = render.told(snapshot, Conditions.LAUNCHED, "Unknown", why.reason, why.message)
    return Plan(status=shown, notes=(why,))


def _without_strangers(snapshot: Snapshot) -> Snapshot:
    """Instances beside the one that the claim knows say nothing of that one, which may be paid for unseen."""
    known, sight = snapshot.object.status.instance_id, snapshot.sight
    if not known or not isinstance(sight, Seen) or any(instance.id == known for instance in sight.instances):
        return snapshot
    return msgspec.structs.replace(snapshot, sight=Unseen(others=sight.instances))


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
    """The ticket, against the version of the claim, and with it the call. One that was not used is written anew."""
    end = verdict(snapshot)
    if end is not None:
        told = Verdict(end.reason, f"{end.message} Nothing was launched.")
        return termination.over(snapshot, told, usd=render.NEVER_PAID)
    wait = _obstacle(snapshot)
    if wait is not None:
        return _waiting(snapshot, *wait)
    claim, order = snapshot.object, snapshot.order
    assert order is not None, "without one there is an obstacle"
    launching = Launching(by=snapshot.identity, nonce=snapshot.ticket, at=timestamp(snapshot.now))
    status = render.told(snapshot, Conditions.LAUNCHED, "Unknown", Reason.LAUNCHING, "The cloud is being called.")
    # The cloud counts from the call on, and so do we: time spent waiting for capacity is not lived.
    deadline = timestamp(snapshot.now + timedelta(seconds=order.seconds))
    status = msgspec.structs.replace(status, state="Launching", launching=launching, deadline_time=deadline)
    launch = Launch(claim.spec.provider, CLOUD_INSTANCE.resource, claim, order, status)
    return Plan(actions=(launch,), look_again=snapshot.terms.tick)


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
    """What the last call brought, until it is time for the next one. Who is throttled is the account."""
    for call in (snapshot.call, snapshot.throttled):
        if (
            call is not None
            and call.failed is not None
            and termination.is_within(call.pause, call.failed, snapshot.now)
        ):
            reason = Reason.THROTTLED if isinstance(call.error, Throttled) else Reason.NO_CAPACITY
            left = call.failed + call.pause - snapshot.now
            return reason, f"{call.error} Asked again later.", left.total_seconds()
    return None


def _launching(snapshot: Snapshot) -> Plan:
    """Somebody may have called. If it is us, we know; if not, only listings can tell."""
    mine = _own_call(snapshot)
    if _found(snapshot) and not (mine and mine.is_under_way):
        return _mirror(snapshot, _found(snapshot))
    if mine is not None:
        return _called(snapshot, mine)
    launching = snapshot.object.status.launching
    if launching is not None and launching.nonce == snapshot.ticket:
        return _unlaunched(snapshot)  # nobody has used it, and nobody but us can
    tick = timedelta(seconds=snapshot.terms.tick)
    if launching is not None and termination.is_within(tick, datetime.fromisoformat(launching.at), snapshot.now):
        return Plan(look_again=snapshot.terms.tick)  # whoever wrote it may be about to call, and tells soon
    return _in_doubt(snapshot, "The operator that called the cloud ended before it wrote down the answer.")


def _called(snapshot: Snapshot, call: Call) -> Plan:
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
        case Refused():
            return _refused(
                snapshot, error.reason if termination.REASON.fullmatch(error.reason) else Reason.REFUSED, error
            )
        case Unsupported():
            return _refused(snapshot, Reason.REFUSED, error)
        case _:
            return _in_doubt(snapshot, str(error))


def _refused(snapshot: Snapshot, reason: str, error: ProviderError) -> Plan:
    over = termination.over(snapshot, Verdict(reason, str(error)), usd=render.NEVER_PAID)
    return msgspec.structs.replace(over, notes=(Note(reason, str(error), warning=True),))


def _in_doubt(snapshot: Snapshot, why: str) -> Plan:
    message = f"{why} Whether there is an instance is decided by the next listings; until then nothing is launched."
    status = render.told(snapshot, Conditions.LAUNCHED, "Unknown", Reason.REPLY_LOST, message)
    return Plan(
        status=msgspec.structs.replace(status, state="Unknown"),
        notes=(Note(Reason.REPLY_LOST, message, warning=True),),
        look_again=snapshot.terms.tick,
    )


def _unknown(snapshot: Snapshot) -> Plan:
    if _found(snapshot):
        return _mirror(snapshot, _found(snapshot))
    if _is_calling(snapshot) or not _is_surely_absent(snapshot):
        return Plan(look_again=snapshot.terms.tick)
    end = verdict(snapshot)
    if end is not None:
        told = Verdict(end.reason, f"{end.message} No instance ever appeared.")
        return termination.over(snapshot, told, usd=render.NEVER_PAID)
    message = "No listing showed an instance for longer than the cloud takes to show one, so it is launched anew."
    return Plan(status=_back(snapshot, Reason.NEVER_APPEARED, message), look_again=0.0)


def _alive(snapshot: Snapshot) -> Plan:
    """There is an instance, and we know its id."""
    if isinstance(snapshot.sight, Seen):
        return _mirror(snapshot, snapshot.sight.instances)
    if not _is_surely_absent(snapshot) or not snapshot.sight.is_gone:
        return _unseen(snapshot)
    if termination.living(snapshot.sight.others):
        return _mirror(snapshot, snapshot.sight.others)
    return termination.vanished(snapshot)


def _unseen(snapshot: Snapshot) -> Plan:
    """Nobody says now that it is there, or that it is gone. It can be ended all the same, by its id."""
    end = termination.underway(snapshot) or verdict(snapshot)
    if end is None:
        return Plan(look_again=snapshot.terms.tick)
    status = snapshot.object.status
    others = termination.living(() if isinstance(snapshot.sight, Seen) else snapshot.sight.others)
    return termination.ending(snapshot, end, (status.instance_id, *others), status)


def _mirror(snapshot: Snapshot, instances: tuple[Instance, ...]) -> Plan:
    """Show the oldest instance that lives, and end the others: one claim pays for one."""
    kept = _kept(snapshot.object.status.instance_id, instances)
    spare = tuple(id_ for id_ in termination.living(instances) if id_ != kept.id)
    status = render.as_seen(snapshot, kept)
    if kept.state == "ended":
        return termination.ended(snapshot, kept, status)
    end = termination.underway(snapshot) or verdict(snapshot)
    if end is None and termination.has_just_finished(snapshot, kept):
        # Most clouds confirm at once, and the end is one write then instead of two.
        return Plan(actions=termination.ends(snapshot, (kept.id, *spare)), look_again=snapshot.terms.tick)
    end = end or termination.work_done(kept)
    if end is not None:
        return termination.ending(snapshot, end, (kept.id, *spare), status)
    actions, notes = termination.ends(snapshot, spare), termination.spare_notes(snapshot, spare)
    return Plan(actions=actions, status=status, notes=notes, look_again=_next_look(snapshot))


def _kept(known: str, instances: tuple[Instance, ...]) -> Instance:
    """The oldest that lives, else the one that we know."""
    alive = (instance for instance in instances if instance.state != "ended")
    ours = (instance for instance in instances if known in {"", instance.id})
    return next(alive, None) or next(ours)


def _waiting(snapshot: Snapshot, reason: Reason, message: str, seconds: float) -> Plan:
    return Plan(status=_back(snapshot, reason, message), look_again=max(seconds, 1.0))


def _back(snapshot: Snapshot, reason: Reason, message: str) -> CloudInstanceStatus:
    """To the beginning: it is certain that the cloud has nothing of this claim."""
    status = render.told(snapshot, Conditions.LAUNCHED, "False", reason, message)
    return msgspec.structs.replace(status, state="Claimed", launching=None, deadline_time=None)


def _found(snapshot: Snapshot) -> tuple[Instance, ...]:
    """What the cloud shows of a launch, and what it answered to our call: a listing may be without that one yet."""
    seen = snapshot.sight.instances if isinstance(snapshot.sight, Seen) else ()
    call = _own_call(snapshot)
    answered = call.instance if call else None
    if answered is None or any(instance.id == answered.id for instance in seen):
        return seen
    return oldest_first((*seen, answered))


def _own_call(snapshot: Snapshot) -> Call | None:
    """The call of this process that the claim tells of."""
    call, launching = snapshot.call, snapshot.object.status.launching
    return call if call is not None and launching is not None and call.nonce == launching.nonce else None


def _is_surely_absent(snapshot: Snapshot) -> bool:
    """Where a call may still be worked on, its end is waited for first."""
    sight, terms = snapshot.sight, snapshot.terms
    if isinstance(sight, Seen) or sight.listings < terms.absences:
        return False
    return sight.seconds > terms.visibility + (0.0 if snapshot.object.status.instance_id else terms.creating)


def _is_calling(snapshot: Snapshot) -> bool:
    return snapshot.call is not None and snapshot.call.is_under_way


def _next_look(snapshot: Snapshot) -> float | None:
    """Its time is ours to keep, too; everything else is told by the next listing."""
    span = termination.lifetime(snapshot.object.status)
    return None if span is None else max(1.0, span - snapshot.lived)
