"""Inventory of one cloud: one poll per tick for all claims, and the observation that follows for each claim.

Only complete inventories prove absence. Failed, partial or contradicted ones prove presence only. Absence is counted
over inventories that were requested after the claim's last write, and from zero after a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from skysail.base import tasks as base_tasks
from skysail.claims.snapshot import NotObserved, Observation, Observed
from skysail.claims.types import CloudInstance
from skysail.cloud.account import CloudAccount, Instance, Inventory, oldest_first
from skysail.cloud.errors import ProviderError

# Maximum number of lookups by id that cross-check an inventory without any known instance.
_WITNESSES = 3
# Maximum number of concurrent lookups of missing instances.
_INQUIRIES = 8
# Timeout of a poll: the longer of these two.
_SILENT_TICKS = 3
_SILENT_SECONDS = 30.0
_ALIVE = {"Starting", "Running", "Terminating"}

log = logging.getLogger(__name__)


class _AbsenceCount(NamedTuple):
    """Number and request times of complete inventories in a row without the instance, and the result of its lookup."""

    times: int
    first: float
    last: float
    is_gone: bool = False


class _LastSeen(NamedTuple):
    at: float
    instances: tuple[Instance, ...]


class InventoryTracker:
    """Inventory tracker of one cloud. `changed` gets the name of each claim whose observation changed."""

    def __init__(
        self, account: CloudAccount, cluster: str, *, clock: Callable[[], float], changed: Callable[[str], None]
    ) -> None:
        self.cloud = account
        self.latest: Inventory | None = None
        self.outage = self._unlisted = f"{account.name} has not listed its instances yet."
        self.cluster = cluster
        self._clock = clock
        self._changed = changed
        self._claims: dict[str, CloudInstance] = {}
        # Names of all claims whose instances the cloud may list, also of deleted claims.
        self._listed: set[str] = set()
        self._has_evidence = False
        self._written: dict[str, float] = {}
        self._last_seens: dict[str, _LastSeen] = {}
        self._before: dict[str, tuple[Instance, ...]] = {}
        self._absence_counts: dict[str, _AbsenceCount] = {}

    def claim_changed(self, old: CloudInstance | None, new: CloudInstance | None) -> None:
        """Update the tracked claims. Listener of the claim cache."""
        claim = new or old
        assert claim is not None, "old or new is set"
        if not self.covers(claim):
            return
        name = claim.metadata.name
        self._absence_counts.pop(name, None)
        if new is None:
            if claim.status.instance_id:
                self._listed.add(name)
            self._claims.pop(name, None)
            self._written.pop(name, None)
            self._last_seens.pop(name, None)
            self._before.pop(name, None)
            return
        self._claims[name] = new
        self._written[name] = self._clock()

    async def run(self) -> None:
        """Poll at every tick, and look up each instance that the cloud reports as changed, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            while True:
                if not await base_tasks.run_logged(self.poll(), f"inventory poll of {self.cloud.name}"):
                    self._fail(f"{self.cloud.name} cannot be listed: see the operator log.")
                await asyncio.sleep(self.cloud.terms.poll_interval)

    @property
    def is_polled(self) -> bool:
        """Return whether at least one poll has succeeded or failed since this process started."""
        return self.outage != self._unlisted

    async def poll(self) -> None:
        begun = self._clock()
        try:
            async with asyncio.timeout(self._silence_limit):
                inventory = await self.cloud.list()
                contradiction = await self._cross_check(inventory)
        except ProviderError as error:
            self._fail(f"{self.cloud.name} does not list its instances: {error}")
            return
        except TimeoutError:
            self._fail(
                f"{self.cloud.name} does not list its instances: no answer in {self._silence_limit:.0f} seconds."
            )
            return
        self._take(inventory, begun, is_evidence=inventory.complete and not contradiction)
        await self._confirm_missing()
        if contradiction or not inventory.complete:
            self._fail(contradiction or inventory.problem or f"{self.cloud.name} lists only a part of its instances.")
            return
        self.latest = inventory
        self._recover()

    def observation(self, name: str) -> Observation:
        instances = self._seen(name)
        if name in self._claims and _shows(instances, self._known(name)):
            return Observed(instances)
        previous, absence_count = self._before.get(name, ()), self._absence_counts.get(name)
        if absence_count is None:
            return NotObserved(before=previous, others=instances)
        seconds = absence_count.last - absence_count.first
        return NotObserved(
            listings=absence_count.times,
            seconds=seconds,
            is_gone=absence_count.is_gone,
            before=previous,
            others=instances,
        )

    def has_seen(self, name: str) -> bool | None:
        """Return whether the cloud lists an instance of a claim with this name.

        Returns None if that is unknown, because no listing was complete yet.
        The claim itself may be deleted: its ended instance would count for a new claim with the same name.
        """
        if name in self._listed or self._seen(name):
            return True
        return False if self._has_evidence else None

    def covers(self, claim: CloudInstance) -> bool:
        """Return whether this account may have the instance. Claims without an account match every account.

        An account that does not know its name yet covers all claims of its cloud: it lists nothing until it does.
        """
        spec = claim.spec
        return spec.provider == self.cloud.name and (not self.cloud.account or spec.account in {"", self.cloud.account})

    def record_instance(self, instance: Instance) -> None:
        """Record a direct answer about one instance, which is newer than any inventory."""
        name = instance.claim
        if instance.cluster != self.cluster or name not in self._claims:
            return
        others = [other for other in self._seen(name) if other.id != instance.id]
        self._note(name, oldest_first([*others, instance]), self._clock())

    @property
    def _silence_limit(self) -> float:
        return max(_SILENT_SECONDS, _SILENT_TICKS * self.cloud.terms.poll_interval)

    async def _follow(self) -> None:
        """Reopen the change stream for ever. The next inventory contains the changes that were missed."""
        while True:
            await base_tasks.run_logged(self._listen(), f"change stream of {self.cloud.name}")
            await asyncio.sleep(self.cloud.terms.poll_interval)

    async def _listen(self) -> None:
        try:
            async for name in self.cloud.watch():
                await self._get_instance(name)
        except ProviderError as error:
            log.info("cloud change stream failed, reopened", extra={"cloud": self.cloud.name, "why": str(error)})

    async def _confirm_missing(self) -> None:
        """Look up instances by id that have been missing for long.

        The poll does this, and not the reconcile, so that a slow cloud delays only itself.
        """
        timings, turns = self.cloud.terms, asyncio.Semaphore(_INQUIRIES)
        missing = [
            name
            for name, absence_count in self._absence_counts.items()
            if self._claims[name].status.state in _ALIVE
            and self._known(name)
            and absence_count.times >= timings.absence_threshold
            and absence_count.last - absence_count.first > timings.visibility_delay
        ]

        async def ask(name: str) -> None:
            async with turns:
                await self._get_instance(name)

        await asyncio.gather(*map(ask, missing))

    async def _get_instance(self, name: str) -> None:
        known = self._known(name)
        if not known:
            return  # the reconcile of the launch records the id first
        try:
            async with asyncio.timeout(self._silence_limit):
                instance = await self.cloud.get(known)
        except (ProviderError, TimeoutError) as error:
            log.debug("instance lookup failed", extra={"claim": name, "why": str(error)})
            self._set_gone(name, is_gone=False)
            return
        self._set_gone(name, is_gone=instance is None)
        # Ignore a reused id or a mismatched answer: neither proves anything about our instance.
        if instance is not None and (instance.id, instance.claim) == (known, name):
            self.record_instance(instance)

    def _set_gone(self, name: str, *, is_gone: bool) -> None:
        """Record whether the last lookup found a missing instance. The result holds until the next lookup."""
        absence_count = self._absence_counts.get(name)
        if absence_count is not None and absence_count.is_gone != is_gone:
            self._absence_counts[name] = absence_count._replace(is_gone=is_gone)
            self._changed(name)

    async def _cross_check(self, inventory: Inventory) -> str:
        """Cross-check an inventory that shows none of the known instances: look up some of them by id.

        Returns the contradiction as a sentence, or an empty string.
        """
        if not all(instance.has_usable_id for instance in inventory.instances if instance.cluster == self.cluster):
            return f"{self.cloud.name} lists an instance of this cluster with an empty or too long ID."
        expected = [
            c
            for c in self._claims.values()
            if c.status.state in {"Starting", "Running"}
            and c.status.instance_id
            and not _is_unreadable(inventory, c.metadata.name, c.status.instance_id)
        ]
        there = {instance.id for instance in inventory.instances}
        if any(claim.status.instance_id in there for claim in expected):
            return ""
        for claim in expected[:_WITNESSES]:
            instance = await self.cloud.get(claim.status.instance_id)
            if instance is None or (instance.cluster, instance.claim) != (self.cluster, claim.metadata.name):
                continue
            if instance.state != "ended":
                return f"{self.cloud.name} lists no instance of this cluster, but instance {instance.id} exists."
        return ""

    def _take(self, inventory: Inventory, begun: float, *, is_evidence: bool) -> None:
        found: dict[str, list[Instance]] = defaultdict(list)
        for instance in inventory.instances:
            if instance.cluster == self.cluster and self._is_current(instance) and instance.has_usable_id:
                found[instance.claim].append(instance)
        # An incomplete inventory proves no absence.
        self._listed = set(found) | (set() if is_evidence else self._listed)
        self._has_evidence = self._has_evidence or is_evidence
        for name in self._claims:
            instances = oldest_first(found[name])
            if _shows(instances, self._known(name)):
                self._absence_counts.pop(name, None)
                self._note(name, instances, begun)
            elif is_evidence and not _is_unreadable(inventory, name, self._known(name)):
                self._count_absence(name, instances, begun)
            elif instances:
                ids = {instance.id for instance in instances}
                previous = [instance for instance in self._seen(name) if instance.id not in ids]
                self._note(name, oldest_first([*previous, *instances]), begun)

    def _note(self, name: str, instances: tuple[Instance, ...], at: float) -> None:
        previous = self._last_seens.get(name)
        if previous is not None and previous.at > at:
            return
        self._last_seens[name] = _LastSeen(at, instances)
        if previous is None or previous.instances != instances:
            self._changed(name)

    def _count_absence(self, name: str, others: tuple[Instance, ...], begun: float) -> None:
        """Count one more complete inventory without the instance.

        Does nothing if the claim was written or its instance was seen after the inventory was requested.
        """
        seen = self._last_seens.get(name)
        if begun <= self._written[name] or (seen is not None and seen.at >= begun):
            return
        if seen is not None and _shows(seen.instances, self._known(name)):
            self._before[name] = seen.instances
        if others:
            self._note(name, others, begun)
        else:
            self._last_seens.pop(name, None)
        previous = self._absence_counts.get(name, _AbsenceCount(0, begun, begun))
        self._absence_counts[name] = previous._replace(times=previous.times + 1, last=begun)
        if self._claims[name].status.state not in {None, "Claimed", "Terminated"}:
            self._changed(name)

    def _known(self, name: str) -> str:
        """Return the instance id in the claim's status."""
        claim = self._claims.get(name)
        return claim.status.instance_id if claim else ""

    def _seen(self, name: str) -> tuple[Instance, ...]:
        last_seen = self._last_seens.get(name)
        return tuple(filter(self._is_current, last_seen.instances)) if last_seen else ()

    def _is_current(self, instance: Instance) -> bool:
        """Return whether the instance counts for its claim.

        The terminated instance of a refused candidate does not: it would hide that the next one does not exist.
        """
        claim = self._claims.get(instance.claim)
        if claim is None or instance.state != "ended":
            return bool(instance.claim)
        return all(instance.id != earlier.id for earlier in claim.status.earlier_instances)

    def _fail(self, message: str) -> None:
        """Set the outage. Keep the first message until the cloud works again: each change rewrites every claim."""
        if self.outage in {"", self._unlisted}:
            log.warning("cloud inventory unavailable", extra={"cloud": self.cloud.name, "why": message})
            self.outage = message

    def _recover(self) -> None:
        if self.outage:
            self.outage = ""
            for name, claim in self._claims.items():
                if claim.status.state in {None, "Claimed"}:
                    self._changed(name)


def _shows(instances: tuple[Instance, ...], known: str) -> bool:
    """Return whether the known instance is among them; without a known instance, whether there is any."""
    return any(known in {"", instance.id} for instance in instances)


def _is_unreadable(inventory: Inventory, claim: str, known: str) -> bool:
    return not inventory.unreadable.isdisjoint({claim, known})
