"""The controller of claims: gathers what is known of one, for the plan. Reads the outside, changes nothing there."""

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
        """Whether it exists, by its namespace and UID. ABSENT only where the API server itself says so now."""
        ...

    def stays(self, for_: Beneficiary) -> bool:
        """Whether it is known to exist, and nobody has asked for its end."""
        ...


class Desk(msgspec.Struct, frozen=True):
    """What this process remembers of claims, and may lose."""

    calls: Calls
    orders: Orders
    brake: Brake
    ages: Ages


def beneficiaries(claim: CloudInstance) -> Iterable[IndexKey]:
    """Index of claims by namespace and UID of the object that they are for."""
    return (claim.spec.for_.identity,)


def pods(claim: CloudInstance) -> Iterable[IndexKey]:
    """Index of claims by the UID of their pod, which is all that a provider knows of a pod that it has let go.

    No namespace is needed: the API server assigns the UIDs of pods, and tenants cannot write claims.
    """
    return (IndexKey("", claim.spec.for_.uid),)


def works(claim: CloudInstance) -> Iterable[IndexKey]:
    """Index of claims by namespace and the work that they do."""
    for_ = claim.spec.for_
    return (IndexKey(for_.namespace, for_.work),) if for_.work else ()


def jobs(claim: CloudInstance) -> Iterable[IndexKey]:
    """Index of claims that have an instance or may have one, by namespace and UID of the Job of their pod."""
    for_ = claim.spec.for_
    return (IndexKey(for_.namespace, for_.job),) if for_.job and claim.status.state in _PAID else ()


INDEXES = {"for": beneficiaries, "pod": pods, "work": works, "job": jobs}


class Claims:
    """`listings` by the name of the cloud; a claim for a cloud that is not there any more says so."""

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
        account = f"account {claim.spec.account}" if claim.spec.account else "account"
        return Snapshot(
            object=claim,
            now=self._now(),
            identity=self._identity,
            ticket="",
            terms=Terms(),
            sight=Unseen(),
            has_account=False,
            owner=owner,
            outage=f"Skysail has no {account} at {claim.spec.provider}: give it one in the settings again.",
        )

    def plan(self, snapshot: Snapshot) -> Plan:
        return planner.plan(snapshot)

    def refused(self, snapshot: Snapshot, why: Note) -> Plan:
        return planner.refused(snapshot, why)

    def _rival(self, claim: CloudInstance) -> str:
        """An older object that does the same work, and still has an instance or may have one.

        Pods of a Job without indexes may all do the same. But one that is going is replaced by the next one, and
        nothing is launched for it any more.
        """
        for_ = claim.spec.for_
        if not (for_.work or for_.job):
            return ""
        if self._claims.unreadable:
            names = ", ".join(sorted(key.name for key in self._claims.unreadable))
            return f"Claims that cannot be read may be for the same work: {names}. A newer Skysail may have made them."
        if not self._stays(claim):
            return f"{for_.kind} {for_.name} is going, so nothing is launched for it."
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
    """Whether it is older, for another object."""
    return _age(other) < _age(claim) and other.spec.for_.uid != claim.spec.for_.uid


def _rivalry(other: CloudInstance) -> str:
    for_ = other.spec.for_
    instance = other.status.instance_id or other.metadata.name
    return f"{for_.kind} {for_.name} does the same work, and its instance {instance} has not ended yet."


def _age(claim: CloudInstance) -> tuple[str, str]:
    return claim.metadata.creation_timestamp or "", claim.metadata.name
