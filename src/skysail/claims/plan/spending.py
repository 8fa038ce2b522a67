"""Money of a claim: policy and reservation before the launch, and the final cost after the termination. Pure.

1. Right before the launch all policies are checked once more, and the worst case is reserved in the SpendAccount.
2. The instance lives at most as long as its reservation lasts; the cloud itself enforces this.
3. A claim with an instance has a reservation that covers it. An instance that costs more than reserved raises the
   reservation, or is terminated if the budget does not allow that.
4. The reservation of a terminated claim is replaced by its cost in one write, before the claim is deleted.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import msgspec

from skysail.base.names import Condition as Conditions
from skysail.base.names import EventReason, Reason
from skysail.base.timestamps import timestamp
from skysail.claims.limits import budget, policy_check
from skysail.claims.limits.budget import NotReserved, ReserveRequest
from skysail.claims.limits.policy_check import PolicyQuery
from skysail.claims.limits.spend_account import (
    SPEND_ACCOUNT,
    DayTotal,
    Reservation,
    SpendAccount,
    SpendAccountSpec,
    SpendAccountStatus,
)
from skysail.claims.plan import termination
from skysail.claims.plan.termination import TerminationReason
from skysail.claims.snapshot import Observed, Snapshot
from skysail.claims.types import Candidate, CloudInstance, CloudInstanceStatus
from skysail.core import conditions
from skysail.core.actions import Action, Create, Delete, Event, LaunchInstance, PatchStatus, Plan, SetFinalizers

# Delay until a denied launch is checked again although no policy or account has changed, because a period may end.
_RETRY_SECONDS = 60.0
_POLICY_LIFETIME = "spec.maxDurationSeconds of an OffloadPolicy"
_ALIVE = {"Starting", "Running", "Terminating"}
# Reasons to wait for longer than a moment: the money may serve another launch meanwhile.
_LONG_WAITS = {
    Reason.NO_CAPACITY,
    Reason.LAUNCH_RATE_LIMITED,
    Reason.PREVIOUS_INSTANCE_RUNNING,
    Reason.POLICY_DENIED,
    Reason.INSTANCE_LIMIT_REACHED,
    Reason.BUDGET_EXHAUSTED,
}


class Denial(NamedTuple):
    """Policies or budgets do not allow the launch. `seconds`: until the next check."""

    reason: Reason
    message: str
    seconds: float


class Unknown(NamedTuple):
    """This process does not know yet whether the launch is allowed. `seconds`: until the next check."""

    reason: Reason
    message: str
    seconds: float


class Permit(msgspec.Struct, frozen=True):
    """Permission to launch. `actions` reserve the money and come before the launch.

    `lifetime`: seconds that the instance may live, at most reservation ÷ price. `limited_by`: the limit that made the
    lifetime shorter, empty if none did.
    """

    lifetime: float
    reservation: Reservation
    limited_by: str = ""
    actions: tuple[Action, ...] = ()

    @property
    def events(self) -> tuple[Event, ...]:
        if not self.limited_by:
            return ()
        message = budget.lifetime_limited(self.lifetime, self.limited_by)
        return (Event(EventReason.LIFETIME_LIMITED, message, warning=True),)


class NoAccount(msgspec.Struct, frozen=True):
    """The launch is allowed, but the namespace has no SpendAccount yet."""


Answer = Permit | Denial | Unknown | NoAccount


def permit(snapshot: Snapshot) -> Answer:
    """Check the policies and reserve the worst case."""
    facts, claim = snapshot.spending, snapshot.object
    unknown = facts.unknown_policies or facts.unknown_account
    if unknown:
        return Unknown(Reason.LIMITS_UNKNOWN, f"{unknown} The launch waits.", snapshot.timings.poll_interval)
    others = _other_reservations(facts.account, claim)
    decision = policy_check.check(facts.policies, _query(snapshot, others))
    if not decision.allowed:
        is_full = decision.reason == Reason.INSTANCE_LIMIT_REACHED
        reason = Reason.INSTANCE_LIMIT_REACHED if is_full else Reason.POLICY_DENIED
        return Denial(reason, decision.message, _RETRY_SECONDS)
    if facts.account is None:
        return NoAccount()
    requested = _lifetime(snapshot)
    lifetime = min(requested, decision.max_lifetime or requested)
    request = msgspec.structs.replace(_request(claim, price_of(claim), lifetime), finish=decision.finish)
    made = budget.reserve(facts.account.status, request, decision.budgets, snapshot.now)
    if isinstance(made, NotReserved):
        return Denial(Reason.BUDGET_EXHAUSTED, made.message, _RETRY_SECONDS)
    limited_by = made.limited_by or (_POLICY_LIFETIME if lifetime < requested else "")
    return Permit(made.lifetime, made.reservation, limited_by, _write(facts.account, made.status))


def open_account(snapshot: Snapshot) -> Plan:
    """Create the account of the namespace. The next plan reserves in it."""
    return Plan(actions=(_open_account(snapshot.object),), requeue_after=0.0)


def launching_status(status: CloudInstanceStatus, reservation: Reservation) -> CloudInstanceStatus:
    """Record the reservation in the status of a claim."""
    return msgspec.structs.replace(status, reserved_usd=reservation.usd, reserve_time=reservation.at)


def account_for(snapshot: Snapshot, plan: Plan) -> Plan:
    """Complete the plan of a claim: cover its instance, release money that waits, settle what is terminated."""
    old = snapshot.object.status
    new = plan.status if isinstance(plan.status, CloudInstanceStatus) else old
    if old.state == "Terminated":
        return _settle(snapshot, plan)
    if snapshot.spending.unknown_account or any(isinstance(action, LaunchInstance) for action in plan.actions):
        return plan
    if new.state in _ALIVE:
        return _cover(snapshot, plan, new)
    if new.state == "Terminated":
        return _with_status(snapshot, plan, _traced(snapshot, new))
    return _release(snapshot, plan, new) if {old.state, new.state} <= {None, "Claimed"} else plan


def price_of(claim: CloudInstance) -> float | None:
    """Return the price of the candidate that is tried, in US dollars per hour, or None if the cloud chooses."""
    candidate = _candidate(claim)
    return None if candidate is None else candidate.usd_per_hour


def costs(claim: CloudInstance) -> list[DayTotal]:
    """Return the final cost of a terminated claim by UTC day."""
    status = claim.status
    if not status.usd_total or status.end_time is None:
        return []
    end = datetime.fromisoformat(status.end_time)
    start = datetime.fromisoformat(status.start_time) if status.start_time else end
    return [
        DayTotal(day=day, provider=claim.spec.provider, gpu=_gpu_type(claim), usd=usd)
        for day, usd in budget.split_by_day(status.usd_total, start, end)
    ]


def _query(snapshot: Snapshot, others: int) -> PolicyQuery:
    claim, facts = snapshot.object, snapshot.spending
    spec, candidate, gpu = claim.spec, _candidate(claim), _gpu_type(claim)
    machines = max(1, spec.members * (spec.gpu.count if spec.gpu else 1))
    return PolicyQuery(
        namespace=spec.owner.namespace,
        namespace_labels=facts.namespace_labels,
        provider=spec.provider,
        gpu_type=gpu,
        gpu_aliases=facts.gpu_aliases.get(gpu, ()),
        image=spec.image,
        region=candidate.region if candidate else "",
        usd_per_gpu_hour=candidate.usd_per_hour / machines if candidate else None,
        uses_secrets=spec.uses_secrets,
        instances=others,
        size=spec.instances,
        is_automatic=spec.is_automatic,
        account_objects=spec.account_objects,
        is_final=True,
    )


def _lifetime(snapshot: Snapshot) -> float:
    """Return the requested lifetime. The claim tells it also before the node has provided the launch spec."""
    if snapshot.launch_spec is not None:
        return snapshot.launch_spec.max_lifetime
    return float(snapshot.object.spec.max_lifetime_seconds or snapshot.timings.max_lifetime)


def _request(claim: CloudInstance, usd_per_hour: float | None, lifetime: float) -> ReserveRequest:
    return ReserveRequest(
        claim=claim.metadata.name,
        usd_per_hour=usd_per_hour,
        lifetime=lifetime,
        paid=sum(earlier.usd for earlier in claim.status.earlier_instances),
        object=_capped_object(claim),
        earlier_object=_direct_owner(claim),
        max_cost_usd=claim.spec.max_cost_usd,
        instances=claim.spec.instances,
    )


def _capped_object(claim: CloudInstance) -> str:
    """Return the UID of the object whose launches share the cap of the claim."""
    return claim.spec.max_cost_uid or _direct_owner(claim)


def _direct_owner(claim: CloudInstance) -> str:
    """Return the UID of the Job of the claim, or of its owner. It had the cap of claims without `maxCostUID`."""
    owner = claim.spec.owner
    return owner.job_uid or owner.uid


def _cover(snapshot: Snapshot, plan: Plan, status: CloudInstanceStatus) -> Plan:
    """Keep the reservation of an instance at its worst case, and note it in the status."""
    account, claim = snapshot.spending.account, snapshot.object
    if status.state == "Terminating":
        return plan
    if account is None:
        return _when_written(snapshot, plan, _open_account(claim))
    reservation = _reservation(snapshot)
    if reservation is None:
        at = status.reserve_time or timestamp(snapshot.now)
        object_ = _capped_object(claim) if claim.spec.max_cost_usd is not None else ""
        adopted = Reservation(
            claim=claim.metadata.name,
            usd=_worst_case(claim, status),
            at=at,
            object=object_,
            instances=claim.spec.instances,
        )
        return _when_written(snapshot, plan, *_write(account, budget.adopt(account.status, adopted)))
    if _worst_case(claim, status, slack=1.0) > reservation.usd:
        return _raise(snapshot, plan, account, status)
    return _with_status(snapshot, plan, _traced(snapshot, status))


def _raise(snapshot: Snapshot, plan: Plan, account: SpendAccount, status: CloudInstanceStatus) -> Plan:
    """Reserve what the instance costs more than expected, or terminate it."""
    claim, facts = snapshot.object, snapshot.spending
    if facts.unknown_policies:
        return msgspec.structs.replace(plan, requeue_after=snapshot.timings.poll_interval)
    limits = policy_check.limits(facts.policies, claim.spec.owner.namespace, facts.namespace_labels)
    request = _request(claim, status.usd_per_hour, termination.lifetime(status) or 0.0)
    made = budget.reserve(account.status, msgspec.structs.replace(request, finish=True), limits.budgets, snapshot.now)
    if not isinstance(made, NotReserved) and not made.limited_by:
        return _when_written(snapshot, plan, *_write(account, made.status))
    left = made.message if isinstance(made, NotReserved) else f"{made.limited_by} leaves less."
    message = f"The instance costs {status.usd_per_hour:g} USD per hour, more than was reserved. {left}"
    ids = _running(snapshot, status)
    end = TerminationReason(Reason.BUDGET_EXHAUSTED, message)
    return termination.request_termination(snapshot, end, ids, status)


def _running(snapshot: Snapshot, status: CloudInstanceStatus) -> tuple[str, ...]:
    seen = snapshot.observation.instances if isinstance(snapshot.observation, Observed) else ()
    return tuple(dict.fromkeys((status.instance_id, *termination.running_ids(seen))))


def _worst_case(claim: CloudInstance, status: CloudInstanceStatus, *, slack: float = 0.0) -> float:
    """Return the most that the instance can cost until its deadline.

    `slack`: seconds to leave out, because timestamps are rounded to seconds.
    """
    seconds = max(0.0, (termination.lifetime(status) or 0.0) - slack)
    paid = sum(earlier.usd for earlier in claim.status.earlier_instances)
    return round(paid + (status.usd_per_hour or 0.0) * seconds / 3600, 6)


def _traced(snapshot: Snapshot, status: CloudInstanceStatus) -> CloudInstanceStatus:
    reservation = _reservation(snapshot)
    return status if reservation is None else launching_status(status, reservation)


def _release(snapshot: Snapshot, plan: Plan, status: CloudInstanceStatus) -> Plan:
    """Release the money of a claim that waits for long. The cloud certainly has no instance of it."""
    account, reservation = snapshot.spending.account, _reservation(snapshot)
    launched = conditions.find_condition(status.conditions, Conditions.LAUNCHED)
    if account is None or reservation is None or launched is None or launched.reason not in _LONG_WAITS:
        return plan
    if any(earlier.usd for earlier in status.earlier_instances):
        return plan
    released = budget.release(account.status, [reservation.claim])
    without = msgspec.structs.replace(status, reserved_usd=None, reserve_time=None)
    return msgspec.structs.replace(plan, actions=(*plan.actions, *_write(account, released)), status=without)


def _settle(snapshot: Snapshot, plan: Plan) -> Plan:
    """Replace the reservation by the cost. The claim is kept until this is done."""
    facts, claim = snapshot.spending, snapshot.object
    reservation = _reservation(snapshot)
    kept = tuple(action for action in plan.actions if not isinstance(action, Delete | SetFinalizers))
    if facts.unknown_account and claim.status.reserve_time is not None and kept != plan.actions:
        return msgspec.structs.replace(plan, actions=kept, requeue_after=snapshot.timings.poll_interval)
    if facts.account is None or reservation is None:
        return plan
    # A reservation of another time was written by a process that did not know yet that the claim is terminated.
    is_ours = reservation.at == claim.status.reserve_time
    settled = budget.settle(facts.account.status, claim.metadata.name, costs(claim) if is_ours else [], snapshot.now)
    return msgspec.structs.replace(plan, actions=(*kept, *_write(facts.account, settled)), requeue_after=0.0)


def _when_written(snapshot: Snapshot, plan: Plan, *actions: Action) -> Plan:
    """Add actions on the account to a plan, but only if it writes no status.

    What the cloud says is recorded first, so that an account that cannot be written keeps no instance unrecorded.
    """
    if plan.status is not None and plan.status != snapshot.object.status:
        return msgspec.structs.replace(plan, requeue_after=0.0)
    return msgspec.structs.replace(plan, actions=(*plan.actions, *actions), requeue_after=0.0)


def _with_status(snapshot: Snapshot, plan: Plan, status: CloudInstanceStatus) -> Plan:
    if plan.status is None and status == snapshot.object.status:
        return plan
    return msgspec.structs.replace(plan, status=status)


def _open_account(claim: CloudInstance) -> Create:
    """Return the action that creates the account. It has no owner, because it outlives its namespace."""
    namespace, resource = claim.spec.owner.namespace, SPEND_ACCOUNT.resource
    manifest = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": namespace},
        "spec": msgspec.to_builtins(SpendAccountSpec(namespace)),
    }
    return Create(resource, manifest, None)


def _write(account: SpendAccount, status: SpendAccountStatus) -> tuple[Action, ...]:
    """Return the write of the changed fields, which fails if the account was changed since it was read."""
    old = account.status
    fields = {
        name: msgspec.to_builtins(getattr(status, name))
        for name in ("reservations", "totals", "objects")
        if getattr(status, name) != getattr(old, name)
    }
    return (PatchStatus(SPEND_ACCOUNT.resource, account, fields),) if fields else ()


def _reservation(snapshot: Snapshot) -> Reservation | None:
    account = snapshot.spending.account
    return None if account is None else budget.find(account.status, snapshot.object.metadata.name)


def _other_reservations(account: SpendAccount | None, claim: CloudInstance) -> int:
    """Count instances by reservations: two launches cannot both take the last place, as writes of them exclude."""
    return budget.instances(account.status, without=claim.metadata.name) if account else 0


def _candidate(claim: CloudInstance) -> Candidate | None:
    rows, index = claim.spec.candidates, claim.status.candidate
    return rows[index] if index < len(rows) else None


def _gpu_type(claim: CloudInstance) -> str:
    candidate = _candidate(claim)
    if candidate is not None:
        return candidate.gpu_type
    return claim.spec.gpu.type if claim.spec.gpu else ""
