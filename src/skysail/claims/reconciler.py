"""Reconciler of claims: builds the snapshot of a claim for its plan. Reads only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Protocol

import msgspec

from skysail.base.names import Condition, Reason
from skysail.claims.limits import limits_reader
from skysail.claims.limits.launch_limiter import LaunchLimiter
from skysail.claims.limits.limits_reader import LimitsReader
from skysail.claims.limits.spending_facts import SpendingFacts
from skysail.claims.plan import planner
from skysail.claims.snapshot import NotObserved, OwnerState, Snapshot
from skysail.claims.tracking.cloud_calls import CloudCalls
from skysail.claims.tracking.inventory import InventoryTracker
from skysail.claims.tracking.launch_specs import LaunchSpecs
from skysail.claims.tracking.uptime import Ages
from skysail.claims.types import CLOUD_INSTANCE, CloudInstance
from skysail.cloud.account import Timings
from skysail.core import conditions
from skysail.core.actions import Event, Plan
from skysail.kube.api.objects import IndexKey, Key
from skysail.kube.cache.cache import Cache

_ALIVE = {"Starting", "Running", "Terminating"}
_PAID = {"Launching", "Unknown", *_ALIVE}
_DENIALS = {
    Reason.POLICY_DENIED,
    Reason.INSTANCE_LIMIT_REACHED,
    Reason.BUDGET_EXHAUSTED,
    Reason.LIMITS_UNKNOWN,
}


class Owners(Protocol):
    async def find(self, claim: CloudInstance) -> OwnerState:
        """Look up the owner by its namespace and UID. Returns ABSENT only after a live answer of the API server.

        A gang is absent also if one of its pods is gone whose rank has not exited.
        """
        ...

    def is_kept(self, claim: CloudInstance) -> bool:
        """Return whether the pods of the claim are known to exist and are not being deleted."""
        ...


class ProcessState(msgspec.Struct, frozen=True):
    """In-memory state of this process. A restart may lose it."""

    calls: CloudCalls
    launch_specs: LaunchSpecs
    brake: LaunchLimiter
    ages: Ages
    limits: LimitsReader


def index_by_owner(claim: CloudInstance) -> Iterable[IndexKey]:
    """Index claims by namespace and UID of their owner."""
    return (claim.spec.owner.identity,)


def index_by_pod(claim: CloudInstance) -> Iterable[IndexKey]:
    """Index claims by the UIDs of their pods alone: a provider knows no more of a pod that it has released.

    No namespace is needed: the API server assigns the UIDs of pods, and tenants cannot write claims.
    """
    return tuple(IndexKey("", uid) for uid in claim.spec.pod_uids)


def index_by_work(claim: CloudInstance) -> Iterable[IndexKey]:
    """Index claims by namespace and key of their work."""
    for_ = claim.spec.owner
    return (IndexKey(for_.namespace, for_.work_key),) if for_.work_key else ()


def index_by_job(claim: CloudInstance) -> Iterable[IndexKey]:
    """Index claims that have or may have an instance by namespace and controller of their pod."""
    for_ = claim.spec.owner
    return (IndexKey(for_.namespace, for_.job_uid),) if for_.job_uid and claim.status.state in _PAID else ()


def index_by_denied(claim: CloudInstance) -> Iterable[IndexKey]:
    """Index claims that wait for a policy or for money by namespace."""
    launched = conditions.find_condition(claim.status.conditions, Condition.LAUNCHED)
    is_denied = claim.status.state == "Claimed" and launched is not None and launched.reason in _DENIALS
    return (IndexKey(claim.spec.owner.namespace, ""),) if is_denied else ()


def index_by_exhausted_controller(claim: CloudInstance) -> Iterable[IndexKey]:
    """Index claims that ended because no candidate had capacity, by namespace and controller of their pod."""
    for_, ended = claim.spec.owner, conditions.find_condition(claim.status.conditions, Condition.TERMINATED)
    is_exhausted = claim.status.state == "Terminated" and ended is not None and ended.reason == Reason.NO_CAPACITY
    return (IndexKey(for_.namespace, for_.controller_uid),) if for_.controller_uid and is_exhausted else ()


INDEXES = {
    "owner": index_by_owner,
    "pod": index_by_pod,
    "work": index_by_work,
    "job": index_by_job,
    "denied": index_by_denied,
    "exhausted": index_by_exhausted_controller,
}


class CloudInstanceReconciler:
    """Reconciler of CloudInstances.

    `inventory` maps cloud names to inventories. A claim whose cloud is missing gets the reason NoAccount.
    """

    resource = CLOUD_INSTANCE.resource

    def __init__(
        self,
        claims: Cache[CloudInstance],
        inventory: Mapping[str, InventoryTracker],
        owners: Owners,
        state: ProcessState,
        *,
        identity: str,
        now: Callable[[], datetime],
    ) -> None:
        self._claims = claims
        self._inventory = inventory
        self._owners = owners
        self._state = state
        self._identity = identity
        self._now = now

    async def observe(self, key: Key) -> Snapshot | None:
        claim = self._claims.get(key)
        if claim is None:
            return None
        owner = await self._owners.find(claim)
        spending = await self._spending(claim, owner)
        inventory = self._inventory.get(claim.spec.provider)
        if inventory is None or not inventory.covers(claim):
            return self._without_account(claim, owner, spending)
        state, cloud = self._state, claim.spec.provider
        return Snapshot(
            object=claim,
            now=self._now(),
            identity=self._identity,
            nonce=state.calls.nonce_for(key.name),
            timings=inventory.cloud.terms,
            observation=inventory.observation(key.name),
            owner=owner,
            call=state.calls.last(key.name),
            throttled=state.calls.throttled_call(cloud),
            launch_spec=state.launch_specs.get(key.name),
            outage=inventory.outage,
            limited_by=state.brake.check(claim.spec),
            blocked_by=self._blocking_instance(claim),
            is_superseded=self._is_superseded(claim),
            uptime=state.ages.uptime(key.name),
            termination_requests=state.calls.termination_requests(cloud),
            spending=spending,
        )

    async def _spending(self, claim: CloudInstance, owner: OwnerState) -> SpendingFacts:
        """Read the account at the API server before a claim is given up that may not be settled."""
        limits = self._state.limits
        facts = limits.facts(claim)
        is_released = owner is OwnerState.ABSENT or self._is_superseded(claim)
        if is_released and limits_reader.needs_confirmation(claim, facts):
            return await limits.confirmed_facts(claim)
        return facts

    def _without_account(self, claim: CloudInstance, owner: OwnerState, spending: SpendingFacts) -> Snapshot:
        account = f"Account {claim.spec.account}" if claim.spec.account else "The account"
        return Snapshot(
            object=claim,
            now=self._now(),
            identity=self._identity,
            nonce="",
            timings=Timings(),
            observation=NotObserved(),
            has_account=False,
            owner=owner,
            outage=f"{account} at {claim.spec.provider} is not configured: add it to the settings again.",
            spending=spending,
        )

    def plan(self, snapshot: Snapshot) -> Plan:
        return planner.plan(snapshot)

    def on_rejected(self, snapshot: Snapshot, event: Event) -> Plan:
        return planner.refused(snapshot, event)

    def _blocking_instance(self, claim: CloudInstance) -> str:
        """Return why another claim blocks this launch, as a sentence, or an empty string.

        An older claim for the same work blocks it while its instance is not terminated. Pods of a non-indexed Job may
        run in parallel, but a pod that is being deleted blocks its replacement, and nothing is launched for it.
        """
        for_ = claim.spec.owner
        if not (for_.work_key or for_.job_uid or claim.spec.member_pods):
            return ""
        if self._claims.undecodable:
            names = ", ".join(sorted(key.name for key in self._claims.undecodable))
            return f"Claims {names} cannot be decoded and may do the same work. If a newer Skysail wrote them, upgrade."
        if not self._is_kept(claim):
            return f"{for_.kind} {for_.name} is being deleted, so nothing is launched for it."
        working = self._claims.by("work", IndexKey(for_.namespace, for_.work_key))
        paid = self._claims.by("job", IndexKey(for_.namespace, for_.job_uid))
        same = (other for other in working if other.status.state != "Terminated")
        going = (other for other in paid if not self._is_kept(other))
        rivals = (other for others in (same, going) for other in others if _is_before(other, claim))
        return next(map(_rivalry, (*self._earlier_launches(claim), *rivals)), "")

    def _earlier_launches(self, claim: CloudInstance) -> list[CloudInstance]:
        """Return claims of the same gang whose instances are not terminated."""
        others = self._claims.by("owner", claim.spec.owner.identity) if claim.spec.member_pods else ()
        return [
            other for other in others if other.spec.launch < claim.spec.launch and other.status.state != "Terminated"
        ]

    def _is_kept(self, claim: CloudInstance) -> bool:
        return not claim.metadata.is_deleting and self._owners.is_kept(claim)

    def _is_superseded(self, claim: CloudInstance) -> bool:
        others = self._claims.by("owner", claim.spec.owner.identity)
        return any(other.spec.launch > claim.spec.launch for other in others)


def _is_before(other: CloudInstance, claim: CloudInstance) -> bool:
    """Return whether the other claim is older and has another owner."""
    return _age(other) < _age(claim) and other.spec.owner.uid != claim.spec.owner.uid


def _rivalry(other: CloudInstance) -> str:
    for_ = other.spec.owner
    instance = other.status.instance_id or other.metadata.name
    return f"{for_.kind} {for_.name} does the same work, and its instance {instance} is not terminated yet."


def _age(claim: CloudInstance) -> tuple[str, str]:
    return claim.metadata.creation_timestamp or "", claim.metadata.name
