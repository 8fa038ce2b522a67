"""The controller of claims: gathers what is known of one, for the plan. Reads the outside, changes nothing there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Protocol

import msgspec

from skysail.claims import plan
from skysail.claims.brake import Brake
from skysail.claims.calls import Calls
from skysail.claims.listings import Listings
from skysail.claims.orders import Orders
from skysail.claims.snapshot import Owner, Seen, Sight, Snapshot, Unseen
from skysail.claims.types import CLOUD_INSTANCE, Beneficiary, CloudInstance, CloudInstanceStatus
from skysail.cloud.errors import ProviderError
from skysail.cloud.instances import Terms
from skysail.core.actions import Plan
from skysail.kube.cache import Cache
from skysail.kube.objects import Key

_ALIVE = {"Starting", "Running", "Terminating"}


class Owners(Protocol):
    async def find(self, for_: Beneficiary) -> Owner:
        """Whether it exists, by its UID. ABSENT only where the API server itself says so now."""
        ...

    def stays(self, uid: str) -> bool:
        """Whether it is known to exist, and nobody has asked for its end."""
        ...


class Desk(msgspec.Struct, frozen=True):
    """What this process remembers of claims, and may lose."""

    calls: Calls
    orders: Orders
    brake: Brake


def beneficiaries(claim: CloudInstance) -> Iterable[str]:
    """Index of claims by the UID of what they are for."""
    return (claim.spec.for_.uid,)


def works(claim: CloudInstance) -> Iterable[str]:
    """Index of claims by the work that they do."""
    return (claim.spec.for_.work,) if claim.spec.for_.work else ()


def jobs(claim: CloudInstance) -> Iterable[str]:
    """Index of claims by the Job whose pod they are for."""
    return (claim.spec.for_.job,) if claim.spec.for_.job else ()


INDEXES = {"for": beneficiaries, "work": works, "job": jobs}


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
        if listings is None:
            return self._without_account(claim, owner)
        sight = await _looked(claim, listings)
        now, desk = self._now(), self._desk
        return Snapshot(
            object=claim,
            now=now,
            identity=self._identity,
            ticket=desk.calls.ticket(key.name),
            terms=listings.cloud.terms,
            sight=sight,
            owner=owner,
            call=desk.calls.call(claim),
            order=desk.orders.get(key.name),
            outage=listings.outage,
            brake=desk.brake.verdict(claim.spec, now),
            rival=self._rival(claim),
            is_superseded=self._is_superseded(claim),
            asked=desk.calls.asked,
        )

    def _without_account(self, claim: CloudInstance, owner: Owner) -> Snapshot:
        cloud = claim.spec.provider
        return Snapshot(
            object=claim,
            now=self._now(),
            identity=self._identity,
            ticket="",
            terms=Terms(),
            sight=Unseen(),
            has_account=False,
            owner=owner,
            outage=f"Skysail has no account at {cloud}: give it one in the settings again.",
        )

    def plan(self, snapshot: Snapshot) -> Plan:
        return plan.plan(snapshot)

    def refused(self, snapshot: Snapshot, why: str) -> CloudInstanceStatus:
        return plan.refused(snapshot, why)

    def _rival(self, claim: CloudInstance) -> str:
        """An older object that does the same work, and still has an instance or may have one.

        Pods of a Job without indexes may all do the same. But one that is going is replaced by the next one.
        """
        same = self._claims.by("work", claim.spec.for_.work)
        going = (other for other in self._claims.by("job", claim.spec.for_.job) if not self._stays(other))
        for other in (*same, *going):
            is_older = _age(other) < _age(claim) and other.spec.for_.uid != claim.spec.for_.uid
            if is_older and other.status.state != "Terminated":
                return (
                    f"{other.spec.for_.kind} {other.spec.for_.name} does the same work, and its instance "
                    f"{other.status.instance_id or other.metadata.name} has not ended yet."
                )
        return ""

    def _stays(self, claim: CloudInstance) -> bool:
        return not claim.metadata.is_deleting and self._owners.stays(claim.spec.for_.uid)

    def _is_superseded(self, claim: CloudInstance) -> bool:
        others = self._claims.by("for", claim.spec.for_.uid)
        return any(other.spec.launch > claim.spec.launch for other in others)


async def _looked(claim: CloudInstance, listings: Listings) -> Sight:
    """What the listings say; and where they say for long enough that it is not there, what the cloud itself says."""
    sight, terms, status = listings.sight(claim.metadata.name), listings.cloud.terms, claim.status
    if isinstance(sight, Seen) or status.state not in _ALIVE or not status.instance_id:
        return sight
    if sight.listings < terms.absences or sight.seconds <= terms.visibility:
        return sight
    try:
        instance = await listings.cloud.look(status.instance_id)
    except ProviderError:
        return sight
    if instance is None:
        return msgspec.structs.replace(sight, is_gone=True)
    # An id that came back, or an answer about something else, says nothing of ours.
    return Seen((instance,)) if listings.is_of(instance, claim) else sight


def _age(claim: CloudInstance) -> tuple[str, str]:
    return claim.metadata.creation_timestamp or "", claim.metadata.name
