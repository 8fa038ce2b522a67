"""Reconciler of claims: builds the snapshot of a claim for its plan. Reads only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Protocol

import msgspec

from skysail.claims.limits.launch_limiter import Brake
from skysail.claims.plan import planner
from skysail.claims.snapshot import Owner, Snapshot, Unseen
from skysail.claims.tracking.cloud_calls import Calls
from skysail.claims.tracking.inventory import Listings
from skysail.claims.tracking.launch_specs import Orders
from skysail.claims.tracking.uptime import Ages
from skysail.claims.types import CLOUD_INSTANCE, Beneficiary, CloudInstance
from skysail.cloud.account import Terms
from skysail.core.actions import Note, Plan
from skysail.kube.api.objects import IndexKey, Key
from skysail.kube.cache.cache import Cache

_ALIVE = {"Starting", "Running", "Terminating"}
_PAID = {"Launching", "Unknown", *_ALIVE}


class Owners(Protocol):
    async def find(self, for_: Beneficiary) -> Owner:
        """Look up the owner by its namespace and UID. Returns ABSENT only after a live answer of the API server."""
        ...

    def stays(self, for_: Beneficiary) -> bool:
        """Return whether the owner is known to exist and is not being deleted."""
        ...


class Desk(msgspec.Struct, frozen=True):
    """In-memory state of this process. A restart may lose it."""

    calls: Calls
    orders: Orders
    brake: Brake
    ages: Ages


def beneficiaries(claim: CloudInstance) -> Iterable[IndexKey]:
    """Index claims by namespace and UID of their owner."""
    return (claim.spec.for_.identity,)


def pods(claim: CloudInstance) -> Iterable[IndexKey]:
    """Index claims by the UID of their pod alone: a provider knows no more of a pod that it has released.

    No namespace is needed: the API server assigns the UIDs of pods, and tenants cannot write claims.
    """
    return (IndexKey("", claim.spec.for_.uid),)


def works(claim: CloudInstance) -> Iterable[IndexKey]:
    """Index claims by namespace and key of their work."""
    for_ = claim.spec.for_
    return (IndexKey(for_.namespace, for_.work),) if for_.work else ()


def jobs(claim: CloudInstance) -> Iterable[IndexKey]:
    """Index claims that have or may have an instance by namespace and Job of their pod."""
    for_ = claim.spec.for_
    return (IndexKey(for_.namespace, for_.job),) if for_.job and claim.status.state in _PAID else ()


INDEXES = {"for": beneficiaries, "pod": pods, "work": works, "job": jobs}


class Claims:
    """Reconciler of CloudInstances.

    `listings` maps cloud names to inventories. A claim whose cloud is missing gets the reason NoAccount.
    """

    resource = CLOUD_INSTANCE.resource

    def __init__(
        self,
        claims: Cache[CloudInstance],
        listings: Mapping[str, Listings],
        owners: Owners,
        desk: Desk,
        *,
        identity: str,
        now: Callable[[], datetime],
    ) -> None:
        self._claims = claims
        self._listings = listings
        self._owners = owners
        self._desk = desk
        self._identity = identity
        self._now = now

    async def observe(self, key: Key) -> Snapshot | None:
        claim = self._claims.get(key)
        if claim is None:
            return None
        owner = await self._owners.find(claim.spec.for_)
        listings = self._listings.get(claim.spec.provider)
        if listings is None or not listings.is_about(claim):
            return self._without_account(claim, owner)
        desk, cloud = self._desk, claim.spec.provider
        return Snapshot(
            object=claim,
            now=self._now(),
            identity=self._identity,
            ticket=desk.calls.ticket(key.name),
            terms=listings.cloud.terms,
            sight=listings.sight(key.name),
            owner=owner,
            call=desk.calls.last(key.name),
            throttled=desk.calls.throttled(cloud),
            order=desk.orders.get(key.name),
            outage=listings.outage,
            brake=desk.brake.verdict(claim.spec),
            rival=self._rival(claim),
            is_superseded=self._is_superseded(claim),
            lived=desk.ages.lived(key.name),
            asked=desk.calls.asked(cloud),
        )

    def _without_account(self, claim: CloudInstance, owner: Owner) -> Snapshot:
        account = f"Account {claim.spec.account}" if claim.spec.account else "The account"
        return Snapshot(
            object=claim,
            now=self._now(),
            identity=self._identity,
            ticket="",
            terms=Terms(),
            sight=Unseen(),
            has_account=False,
            owner=owner,
            outage=f"{account} at {claim.spec.provider} is not configured: add it to the settings again.",
        )

    def plan(self, snapshot: Snapshot) -> Plan:
        return planner.plan(snapshot)

    def refused(self, snapshot: Snapshot, why: Note) -> Plan:
        return planner.refused(snapshot, why)

    def _rival(self, claim: CloudInstance) -> str:
        """Return why another claim blocks this launch, as a sentence, or an empty string.

        An older claim for the same work blocks it while its instance is not terminated. Pods of a non-indexed Job may
        run in parallel, but a pod that is being deleted blocks its replacement, and nothing is launched for it.
        """
        for_ = claim.spec.for_
        if not (for_.work or for_.job):
            return ""
        if self._claims.unreadable:
            names = ", ".join(sorted(key.name for key in self._claims.unreadable))
            return f"Claims {names} cannot be decoded and may do the same work. If a newer Skysail wrote them, upgrade."
        if not self._stays(claim):
            return f"{for_.kind} {for_.name} is being deleted, so nothing is launched for it."
        working = self._claims.by("work", IndexKey(for_.namespace, for_.work))
        paid = self._claims.by("job", IndexKey(for_.namespace, for_.job))
        same = (other for other in working if other.status.state != "Terminated")
        going = (other for other in paid if not self._stays(other))
        rivals = (other for others in (same, going) for other in others if _is_before(other, claim))
        return next(map(_rivalry, rivals), "")

    def _stays(self, claim: CloudInstance) -> bool:
        return not claim.metadata.is_deleting and self._owners.stays(claim.spec.for_)

    def _is_superseded(self, claim: CloudInstance) -> bool:
        others = self._claims.by("for", claim.spec.for_.identity)
        return any(other.spec.launch > claim.spec.launch for other in others)


def _is_before(other: CloudInstance, claim: CloudInstance) -> bool:
    """Return whether the other claim is older and has another owner."""
    return _age(other) < _age(claim) and other.spec.for_.uid != claim.spec.for_.uid


def _rivalry(other: CloudInstance) -> str:
    for_ = other.spec.for_
    instance = other.status.instance_id or other.metadata.name
    return f"{for_.kind} {for_.name} does the same work, and its instance {instance} is not terminated yet."


def _age(claim: CloudInstance) -> tuple[str, str]:
    return claim.metadata.creation_timestamp or "", claim.metadata.name
