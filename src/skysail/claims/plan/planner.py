"""The launch protocol: the only code that decides to launch and to terminate billed instances. Pure.

1. The claim is written first.
2. The process that writes an unused nonce into the claim, at its current resourceVersion, may call the cloud once.
3. If the answer is lost, the claim becomes Unknown. Only inventories resolve this state.
4. A known instance id is replaced only by another listed instance of the claim, or dropped when the instance is gone.
5. The claim stays as long as its owner, so that nothing is launched twice.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from skysail.base.names import Condition as Conditions
from skysail.base.names import Reason
from skysail.base.timestamps import timestamp
from skysail.claims.plan import candidates, spending, termination
from skysail.claims.plan import status as claim_status
from skysail.claims.plan.termination import TerminationReason, termination_reason
from skysail.claims.snapshot import CallResult, NotObserved, Observed, Snapshot
from skysail.claims.types import CLOUD_INSTANCE, Launching
from skysail.cloud.account import Instance, oldest_first
from skysail.cloud.errors import MachineRejected, NoCapacity, ProviderError, Rejected, Throttled, Unsupported
from skysail.core import conditions
from skysail.core.actions import Event, LaunchInstance, Plan
from skysail.core.conditions import set_condition

# Reasons to wait that end when the cloud answers. Another provider may serve a pod sooner only then.
_WAITS_FOR_CLOUD = {Reason.THROTTLED, Reason.CLOUD_UNREACHABLE}
# Errors after which no instance exists, and none is launched again for the claim.
_FINAL_ERRORS = (Rejected, Unsupported)


def plan(snapshot: Snapshot) -> Plan:
    return spending.account_for(_without_strangers(snapshot), _plan_candidates(snapshot))


def _plan_candidates(snapshot: Snapshot) -> Plan:
    """Plan the claim apart from its money. Instances of refused candidates stay terminated."""
    if snapshot.object.status.state == "Terminated":
        return termination.on_terminated(snapshot)
    snapshot, revived = candidates.without_earlier(snapshot)
    if revived and snapshot.object.status.state in {None, "Claimed"}:
        actions = termination.terminate_actions(snapshot, revived, has_grace=False)
        return Plan(actions=actions, requeue_after=snapshot.timings.poll_interval)
    made = candidates.continue_after_price(snapshot, _plan(_without_strangers(snapshot)))
    actions = termination.terminate_actions(snapshot, revived, has_grace=False)
    return msgspec.structs.replace(made, actions=(*actions, *made.actions)) if actions else made


def _plan(snapshot: Snapshot) -> Plan:
    status = snapshot.object.status
    if not snapshot.has_account and status.state not in {None, "Claimed"}:
        return _without_account(snapshot)
    match status.state:
        case None | "Claimed":
            return _claimed(snapshot)
        case "Launching":
            return _launching(snapshot)
        case "Unknown":
            return _unknown(snapshot)
        case _:
            return _has_instance(snapshot)


def refused(snapshot: Snapshot, event: Event) -> Plan:
    """Report a rejected write in a condition. The state of the claim stays, and so do the conditions of a final one."""
    status, type_ = snapshot.object.status, Conditions.LAUNCHED
    if status.state != "Terminated":
        status = set_condition(snapshot, status, type_, "Unknown", event.reason, event.message)
    return Plan(status=status, events=(event,))


def _without_strangers(snapshot: Snapshot) -> Snapshot:
    """Move duplicates out of the observation if the known instance is missing: it may still be billed."""
    known, observation = snapshot.object.status.instance_id, snapshot.observation
    if (
        not known
        or not isinstance(observation, Observed)
        or any(instance.id == known for instance in observation.instances)
    ):
        return snapshot
    return msgspec.structs.replace(snapshot, observation=NotObserved(others=observation.instances))


def _without_account(snapshot: Snapshot) -> Plan:
    """Keep the claim: its instance may be billed, and cannot be listed or terminated without the account."""
    claim = snapshot.object
    instance = f"instance {claim.status.instance_id}" if claim.status.instance_id else "an instance that may exist"
    message = f"{snapshot.outage} Until then, {instance} can only be terminated at the cloud itself."
    status = set_condition(snapshot, claim.status, Conditions.TERMINATED, "Unknown", Reason.NO_ACCOUNT, message)
    return Plan(status=status)


def _claimed(snapshot: Snapshot) -> Plan:
    """Plan a claim for which the cloud was never called, or certainly created nothing."""
    if isinstance(snapshot.observation, Observed):
        return _sync_status(snapshot, snapshot.observation.instances)
    if _is_calling(snapshot):
        return Plan(requeue_after=snapshot.timings.poll_interval)  # the call is being cancelled and may still succeed
    return _launch(snapshot)


def _launch(snapshot: Snapshot) -> Plan:
    """Write the nonce at the current resourceVersion of the claim, then call. Rewrites a nonce that was not used."""
    end = termination_reason(snapshot)
    if end is not None:
        reason = TerminationReason(end.reason, f"{end.message} Nothing was launched.")
        return termination.finalize(snapshot, reason, usd=claim_status.NEVER_PAID)
    if candidates.is_hopeless(snapshot.object):
        return candidates.give_up(snapshot)
    permit = spending.permit(snapshot)
    wait = _wait(snapshot, permit)
    if wait is not None:
        report = candidates.long_throttle(snapshot) if wait[0] in _WAITS_FOR_CLOUD else ""
        return candidates.give_up(snapshot, report=report) if report else _waiting(snapshot, *wait)
    return _call(snapshot, permit) if isinstance(permit, spending.Permit) else spending.open_account(snapshot)


def _wait(snapshot: Snapshot, permit: spending.Answer) -> tuple[Reason, str, float] | None:
    """Return why the launch has to wait.

    What all processes know comes before what only this one knows, so that two of them do not contradict each other.
    """
    if isinstance(permit, spending.Denial):
        return permit
    return _launch_blocker(snapshot) or (permit if isinstance(permit, spending.Unknown) else None)


def _call(snapshot: Snapshot, permit: spending.Permit) -> Plan:
    claim = snapshot.object
    assert snapshot.launch_spec is not None, "a missing launch spec is a reason to wait"
    spec = msgspec.structs.replace(candidates.launch_spec(claim, snapshot.launch_spec), max_lifetime=permit.lifetime)
    launching = Launching(by=snapshot.identity, nonce=snapshot.nonce, at=timestamp(snapshot.now))
    message = "The operator is calling the cloud."
    status = set_condition(snapshot, claim.status, Conditions.LAUNCHED, "Unknown", Reason.LAUNCHING, message)
    # Start the lifetime at the call, as the cloud does: time spent waiting for capacity does not count.
    deadline = timestamp(snapshot.now + timedelta(seconds=spec.max_lifetime))
    status = msgspec.structs.replace(
        candidates.begin(claim, status),
        state="Launching",
        launching=launching,
        deadline_time=deadline,
        lifetime_limit=permit.limited_by,
    )
    status = spending.launching_status(status, permit.reservation)
    launch_instance = LaunchInstance(claim.spec.provider, CLOUD_INSTANCE.resource, claim, spec, status)
    actions = (*permit.actions, launch_instance)
    return Plan(actions=actions, events=permit.events, requeue_after=snapshot.timings.poll_interval)


def _launch_blocker(snapshot: Snapshot) -> tuple[Reason, str, float] | None:
    """Return why the launch has to wait, and after how many seconds to check again."""
    tick = snapshot.timings.poll_interval
    if snapshot.outage:
        reason = Reason.CLOUD_UNREACHABLE if snapshot.has_account else Reason.NO_ACCOUNT
        return reason, f"{snapshot.outage} The launch waits until the cloud answers.", tick
    if snapshot.launch_spec is None:
        return Reason.WAITING_FOR_NODE, "The node has not provided the launch spec yet.", tick
    if snapshot.blocked_by:
        return Reason.PREVIOUS_INSTANCE_RUNNING, snapshot.blocked_by, tick
    pause = _pause(snapshot)
    if pause is not None:
        return pause
    if snapshot.limited_by:
        return Reason.LAUNCH_RATE_LIMITED, snapshot.limited_by, tick
    return None


def _pause(snapshot: Snapshot) -> tuple[Reason, str, float] | None:
    """Return the backoff after the last failed call. Throttling applies to the account, so to all of its claims."""
    delay = candidates.price_delay(snapshot)
    if delay is not None:
        return Reason.NO_CAPACITY, _no_capacity_message(snapshot, ""), delay
    for call in (snapshot.call, snapshot.throttled):
        if (
            call is not None
            and call.failed is not None
            and termination.is_within(call.pause, call.failed, snapshot.now)
        ):
            remaining = (call.failed + call.pause - snapshot.now).total_seconds()
            if isinstance(call.error, Throttled):
                return Reason.THROTTLED, f"{call.error} The launch is retried later.", remaining
            return Reason.NO_CAPACITY, _no_capacity_message(snapshot, str(call.error)), remaining
    return None


def _no_capacity_message(snapshot: Snapshot, error: str) -> str:
    claim = snapshot.object
    report = candidates.summary(claim, claim.status) if candidates.is_exhausted(claim) else error
    return f"{report} The launch is retried later."


def _launching(snapshot: Snapshot) -> Plan:
    """Plan a claim whose call may have been made. Only inventories show the outcome of another process's call."""
    mine = _own_call(snapshot)
    if mine is not None and isinstance(mine.error, _FINAL_ERRORS):
        # The inventory may be older than the error. An instance that is found later is terminated.
        return _failed(snapshot, mine.error)
    if _found(snapshot) and not (mine and mine.is_under_way):
        return _sync_status(snapshot, _found(snapshot))
    if mine is not None:
        return _called(snapshot, mine)
    launching = snapshot.object.status.launching
    if launching is not None and launching.nonce == snapshot.nonce:
        return _launch(snapshot)  # the nonce is ours and unused
    tick = timedelta(seconds=snapshot.timings.poll_interval)
    if launching is not None and termination.is_within(tick, datetime.fromisoformat(launching.at), snapshot.now):
        return Plan(requeue_after=snapshot.timings.poll_interval)  # the process that wrote it may be calling now
    return _outcome_unknown(snapshot, "The operator that called the cloud stopped before it recorded the answer.")


def _called(snapshot: Snapshot, call: CallResult) -> Plan:
    if call.error is None:
        if termination_reason(snapshot) is None:
            return Plan(requeue_after=snapshot.timings.poll_interval)
        return _outcome_unknown(snapshot, "The launch was cancelled because the instance is no longer needed.")
    return _failed(snapshot, call.error)


def _failed(snapshot: Snapshot, error: ProviderError) -> Plan:
    """Plan after a failed call. Only the errors of the provider contract prove that nothing was created."""
    snapshot = _with_cost(snapshot, error)
    match error:
        case NoCapacity() if snapshot.object.spec.candidates:
            return candidates.no_capacity(snapshot, error)
        case MachineRejected() | Unsupported():
            return _refused(snapshot, Reason.REFUSED, error)
        case NoCapacity() | Throttled():
            reason = Reason.THROTTLED if isinstance(error, Throttled) else Reason.NO_CAPACITY
            status = claim_status.reset_to_claimed(snapshot, reason, f"{error} The launch is retried later.")
            return Plan(status=status, requeue_after=0.0)
        case Rejected():
            return _refused(
                snapshot, error.reason if termination.REASON.fullmatch(error.reason) else Reason.REFUSED, error
            )
        case _:
            return _outcome_unknown(snapshot, str(error))


def _with_cost(snapshot: Snapshot, error: ProviderError) -> Snapshot:
    """Add what the failed call has cost to the claim, as an instance that has ended."""
    if not error.usd:
        return snapshot
    claim, launching = snapshot.object, snapshot.object.status.launching
    call = "failed" if launching is None else f"failed.{launching.nonce}"
    rows = candidates.with_earlier(claim.status, call, round(error.usd, 6))
    status = msgspec.structs.replace(claim.status, earlier_instances=rows)
    return msgspec.structs.replace(snapshot, object=msgspec.structs.replace(claim, status=status))


def _refused(snapshot: Snapshot, reason: str, error: ProviderError) -> Plan:
    over = termination.finalize(snapshot, TerminationReason(reason, str(error)), usd=claim_status.NEVER_PAID)
    return msgspec.structs.replace(over, events=(Event(reason, str(error), warning=True),))


def _outcome_unknown(snapshot: Snapshot, reason: str) -> Plan:
    message = f"{reason} Nothing is launched until the cloud's inventory shows whether an instance exists."
    status = set_condition(snapshot, snapshot.object.status, Conditions.LAUNCHED, "Unknown", Reason.REPLY_LOST, message)
    return Plan(
        status=msgspec.structs.replace(status, state="Unknown"),
        events=(Event(Reason.REPLY_LOST, message, warning=True),),
        requeue_after=snapshot.timings.poll_interval,
    )


def _unknown(snapshot: Snapshot) -> Plan:
    if _found(snapshot):
        return _sync_status(snapshot, _found(snapshot))
    if _is_calling(snapshot) or not _is_surely_absent(snapshot):
        return Plan(requeue_after=snapshot.timings.poll_interval)
    end = termination_reason(snapshot)
    if end is not None:
        reason = TerminationReason(end.reason, f"{end.message} No instance was found.")
        return termination.finalize(snapshot, reason, usd=claim_status.NEVER_PAID)
    message = "The cloud has listed no instance for longer than a launch takes, so the launch is repeated."
    return Plan(status=claim_status.reset_to_claimed(snapshot, Reason.INSTANCE_NOT_FOUND, message), requeue_after=0.0)


def _has_instance(snapshot: Snapshot) -> Plan:
    """Plan a claim whose instance id is known."""
    if isinstance(snapshot.observation, Observed):
        return _sync_status(snapshot, snapshot.observation.instances)
    if not _is_surely_absent(snapshot) or not snapshot.observation.is_gone:
        return _unseen(snapshot)
    if termination.running_ids(snapshot.observation.others):
        return _sync_status(snapshot, snapshot.observation.others)
    return termination.on_vanished(snapshot)


def _unseen(snapshot: Snapshot) -> Plan:
    """Plan while neither presence nor absence is proven. The instance can still be terminated by its id."""
    end = termination.pending_termination(snapshot) or termination_reason(snapshot)
    if end is None:
        return Plan(requeue_after=snapshot.timings.poll_interval)
    status = snapshot.object.status
    others = termination.running_ids(() if isinstance(snapshot.observation, Observed) else snapshot.observation.others)
    return termination.request_termination(snapshot, end, (status.instance_id, *others), status)


def _sync_status(snapshot: Snapshot, instances: tuple[Instance, ...]) -> Plan:
    """Copy the oldest running instance into the status and terminate duplicates: a claim pays for one instance."""
    kept = _kept(snapshot.object.status.instance_id, instances)
    spare = tuple(id_ for id_ in termination.running_ids(instances) if id_ != kept.id)
    status = claim_status.mirror_instance(snapshot, kept)
    if kept.state == "ended":
        return termination.on_ended(snapshot, kept, status)
    if kept.exit is not None and snapshot.timings.forgets_ended and snapshot.object.status.exit is None:
        # Record the exit first: after a crash, a finished program whose instance is gone would run again.
        return Plan(status=status, requeue_after=0.0)
    end = termination.pending_termination(snapshot) or termination_reason(snapshot)
    if end is None and termination.has_just_finished(snapshot, kept):
        # Do not write Terminating yet: most clouds confirm at once, which saves a status write.
        return Plan(
            actions=termination.terminate_actions(snapshot, (kept.id, *spare)),
            requeue_after=snapshot.timings.poll_interval,
        )
    end = end or termination.program_finished(kept) or candidates.price_above_cap(snapshot, kept, status)
    if end is not None and end.reason == Reason.PRICE_ABOVE_CAP:
        return candidates.terminate_dear(snapshot, end, (kept.id, *spare), status)
    if end is not None:
        return termination.request_termination(snapshot, end, (kept.id, *spare), status)
    actions, events = termination.terminate_actions(snapshot, spare), termination.duplicate_events(snapshot, spare)
    return Plan(actions=actions, status=status, events=events, requeue_after=_next_look(snapshot))


def _kept(known: str, instances: tuple[Instance, ...]) -> Instance:
    """Return the oldest running instance, else the known one."""
    alive = (instance for instance in instances if instance.state != "ended")
    ours = (instance for instance in instances if known in {"", instance.id})
    return next(alive, None) or next(ours)


def _waiting(snapshot: Snapshot, reason: Reason, message: str, seconds: float) -> Plan:
    """Say why the launch waits.

    A new reason in place of another one is deferrable: two processes that contradict each other must not write without
    end.
    """
    old = snapshot.object.status
    launched = conditions.find_condition(old.conditions, Conditions.LAUNCHED)
    return Plan(
        status=claim_status.reset_to_claimed(snapshot, reason, message),
        is_deferrable=old.state == "Claimed" and launched is not None,
        requeue_after=max(seconds, 1.0),
    )


def _found(snapshot: Snapshot) -> tuple[Instance, ...]:
    """Return the observed instances and the one our call created, which inventories may not show yet."""
    seen = snapshot.observation.instances if isinstance(snapshot.observation, Observed) else ()
    call = _own_call(snapshot)
    answered = call.instance if call else None
    if answered is None or any(instance.id == answered.id for instance in seen):
        return seen
    return oldest_first((*seen, answered))


def _own_call(snapshot: Snapshot) -> CallResult | None:
    """Return the call of this process whose nonce is in the claim."""
    call, launching = snapshot.call, snapshot.object.status.launching
    return call if call is not None and launching is not None and call.nonce == launching.nonce else None


def _is_surely_absent(snapshot: Snapshot) -> bool:
    """Return whether enough complete inventories prove absence.

    Without an instance id this takes longer: the cloud may still be creating the instance.
    """
    observation, timings = snapshot.observation, snapshot.timings
    if isinstance(observation, Observed) or observation.listings < timings.absence_threshold:
        return False
    return observation.seconds > timings.visibility_delay + (
        0.0 if snapshot.object.status.instance_id else timings.create_timeout
    )


def _is_calling(snapshot: Snapshot) -> bool:
    return snapshot.call is not None and snapshot.call.is_under_way


def _next_look(snapshot: Snapshot) -> float | None:
    """Return the seconds until the lifetime ends. All other changes come with the next inventory."""
    span = termination.lifetime(snapshot.object.status)
    return None if span is None else max(1.0, span - snapshot.uptime)
