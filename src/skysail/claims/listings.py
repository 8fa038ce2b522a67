"""What one cloud says that it runs: one poll per tick for all claims, and what follows from it for each of them.

A listing that failed, that is not complete, or that another way to ask contradicts shows what is there and nothing
else: absence is counted on complete ones only, begun after the claim was last written, and from zero after a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from skysail.claims.snapshot import Seen, Sight, Unseen
from skysail.claims.types import CloudInstance
from skysail.cloud.errors import ProviderError
from skysail.cloud.instances import Cloud, Instance, Inventory

# How many instances are asked for one by one, where a listing shows none of ours.
_WITNESSES = 3

log = logging.getLogger(__name__)


class _Absence(NamedTuple):
    """So many complete listings in a row without it, the first of them begun then."""

    times: int
    first: float
    last: float


class _Sighting(NamedTuple):
    at: float
    instances: tuple[Instance, ...]


class Listings:
    """Of one cloud. `changed` is told the name of each claim about which there is news."""

    def __init__(
        self, cloud: Cloud, cluster: str, *, clock: Callable[[], float], changed: Callable[[str], None]
    ) -> None:
        self.cloud = cloud
        self.latest: Inventory | None = None
        self.outage = self._unlisted = f"{cloud.name} has not listed its instances yet."
        self.cluster = cluster
        self._clock = clock
        self._changed = changed
        self._claims: dict[str, CloudInstance] = {}
        self._written: dict[str, float] = {}
        self._sightings: dict[str, _Sighting] = {}
        self._before: dict[str, tuple[Instance, ...]] = {}
        self._absences: dict[str, _Absence] = {}

    def claim_changed(self, old: CloudInstance | None, new: CloudInstance | None) -> None:
        """Given to the cache of claims as a listener."""
        claim = new or old
        assert claim is not None, "a change has a before or an after"
        if claim.spec.provider != self.cloud.name:
            return
        name = claim.metadata.name
        self._absences.pop(name, None)
        if new is None:
            self._claims.pop(name, None)
            self._written.pop(name, None)
            self._sightings.pop(name, None)
            self._before.pop(name, None)
            return
        self._claims[name] = new
        self._written[name] = self._clock()

    async def run(self) -> None:
        """Until cancelled: poll at every tick, and look at once at what the cloud itself tells."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            while True:
                await self.poll()
                await asyncio.sleep(self.cloud.terms.tick)

    @property
    def is_polled(self) -> bool:
        """Whether the cloud has answered, or failed to, since this process began."""
        return self.outage != self._unlisted

    async def poll(self) -> None:
        begun = self._clock()
        try:
            inventory = await self.cloud.list()
            contradiction = await self._contradiction(inventory)
        except ProviderError as error:
            self._fail(f"{self.cloud.name} does not list its instances: {error}")
            return
        self._take(inventory, begun, is_evidence=inventory.complete and not contradiction)
        if contradiction or not inventory.complete:
            self._fail(contradiction or f"{self.cloud.name} lists its instances in part only.")
            return
        self.latest = inventory
        self._recover()

    def sight(self, name: str) -> Sight:
        found = self._sightings.get(name)
        if found is not None:
            return Seen(found.instances)
        absence, before = self._absences.get(name), self._before.get(name, ())
        if absence is None:
            return Unseen(before=before)
        return Unseen(listings=absence.times, seconds=absence.last - absence.first, before=before)

    def is_of(self, instance: Instance, claim: CloudInstance) -> bool:
        return (instance.cluster, instance.claim) == (self.cluster, claim.metadata.name)

    def saw(self, instance: Instance) -> None:
        """An answer about one instance, newer than any listing."""
        name = instance.claim
        if instance.cluster != self.cluster or name not in self._claims:
            return
        others = [other for other in self._seen(name) if other.id != instance.id]
        self._note(name, _in_order([*others, instance]), self._clock())

    async def _follow(self) -> None:
        """A cloud that stops telling is asked to begin again; what it did not tell is in the next listing."""
        while True:
            try:
                async for name in self.cloud.changes():
                    await self._look(name)
            except ProviderError as error:
                log.info("cloud does not tell changes", extra={"cloud": self.cloud.name, "why": str(error)})
            await asyncio.sleep(self.cloud.terms.tick)

    async def _look(self, name: str) -> None:
        claim = self._claims.get(name)
        if claim is None or not claim.status.instance_id:
            return  # whoever made it tells its id first
        try:
            instance = await self.cloud.look(claim.status.instance_id)
        except ProviderError as error:
            log.debug("no look at an instance", extra={"claim": name, "why": str(error)})
            return
        if instance is not None:
            self.saw(instance)

    async def _contradiction(self, inventory: Inventory) -> str:
        """Where a listing shows nothing of what we know to run, some of it is asked for by its id."""
        expected = [
            c for c in self._claims.values() if c.status.state in {"Starting", "Running"} and c.status.instance_id
        ]
        there = {instance.id for instance in inventory.instances}
        if any(claim.status.instance_id in there for claim in expected):
            return ""
        for claim in expected[:_WITNESSES]:
            instance = await self.cloud.look(claim.status.instance_id)
            if instance is not None and instance.state != "ended" and self.is_of(instance, claim):
                return f"{self.cloud.name} lists nothing of ours, and yet instance {instance.id} exists."
        return ""

    def _take(self, inventory: Inventory, begun: float, *, is_evidence: bool) -> None:
        found: dict[str, list[Instance]] = defaultdict(list)
        for instance in inventory.instances:
            if instance.cluster == self.cluster and instance.claim:
                found[instance.claim].append(instance)
        for name, claim in self._claims.items():
            if _shows(found[name], claim.status.instance_id):
                self._absences.pop(name, None)
                self._note(name, _in_order(found[name]), begun)
            elif is_evidence:
                self._miss(name, begun)

    def _note(self, name: str, instances: tuple[Instance, ...], at: float) -> None:
        before = self._sightings.get(name)
        if before is not None and before.at > at:
            return
        self._sightings[name] = _Sighting(at, instances)
        if before is None or before.instances != instances:
            self._changed(name)

    def _miss(self, name: str, begun: float) -> None:
        """One more complete listing without it, unless the claim, or what we saw of it, is newer than its beginning."""
        seen = self._sightings.get(name)
        if begun <= self._written[name] or (seen is not None and seen.at >= begun):
            return
        if seen is not None:
            self._before[name] = self._sightings.pop(name).instances
        before = self._absences.get(name)
        self._absences[name] = _Absence(before.times + 1, before.first, begun) if before else _Absence(1, begun, begun)
        if self._claims[name].status.state not in {None, "Claimed", "Terminated"}:
            self._changed(name)

    def _seen(self, name: str) -> tuple[Instance, ...]:
        sighting = self._sightings.get(name)
        return sighting.instances if sighting else ()

    def _fail(self, why: str) -> None:
        """The first sentence stands until the cloud lists again: each claim shows it, and changes are writes."""
        if self.outage in {"", self._unlisted}:
            log.warning("cloud not listed", extra={"cloud": self.cloud.name, "why": why})
            self.outage = why

    def _recover(self) -> None:
        if self.outage:
            self.outage = ""
            for name, claim in self._claims.items():
                if claim.status.state in {None, "Claimed"}:
                    self._changed(name)


def _shows(found: list[Instance], known: str) -> bool:
    """Whether this tells something of the instance that we know. That another one ended does not."""
    return any(instance.state != "ended" or known in {"", instance.id} for instance in found)


def _in_order(instances: Iterable[Instance]) -> tuple[Instance, ...]:
    """The oldest first; the id decides between those of one second."""
    return tuple(sorted(instances, key=lambda instance: (instance.created, instance.id)))
