"""Connects the parts of `claims` in one process: inventories, offers, cloud calls, launch specs, launch limits,
orphans.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial

import msgspec

from skysail.claims.dependencies import ClaimDependencies
from skysail.claims.limits.launch_history import LaunchRecord
from skysail.claims.limits.launch_limiter import LaunchLimiter, LaunchLimits
from skysail.claims.orphan_collector import OrphanCollector
from skysail.claims.provider import ClaimProvider
from skysail.claims.reconciler import CloudInstanceReconciler, Owners, ProcessState
from skysail.claims.tracking import cloud_calls
from skysail.claims.tracking.cloud_calls import CloudCalls
from skysail.claims.tracking.inventory import InventoryTracker
from skysail.claims.tracking.launch_specs import LaunchSpecs
from skysail.claims.tracking.offer_catalogue import OfferCatalogue
from skysail.claims.tracking.uptime import Ages
from skysail.claims.types import CLOUD_INSTANCE, CloudInstance
from skysail.cloud.account import CloudAccount, Instance
from skysail.core.actions import TerminateInstance
from skysail.kube.api.objects import Key, Object
from skysail.kube.api.rbac import PolicyRule, read_rule
from skysail.kube.api.resources import POD
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import Client

POLICY_RULES = (
    read_rule(CLOUD_INSTANCE.resource),
    PolicyRule(CLOUD_INSTANCE.resource, ("create", "delete", "patch")),
    PolicyRule(CLOUD_INSTANCE.resource, ("update",), subresource="status"),
    PolicyRule(POD, ("get",)),
)


class ClaimSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of all claims. `cluster` marks our instances at a cloud: two clusters may share an account."""

    cluster: str
    identity: str
    limits: LaunchLimits = LaunchLimits()
    sweep_grace: float = 600.0


class ClaimManager:
    """All parts of `claims` in one process.

    The controller of the process uses `controller`, its executor uses `calls`. `on_change` sets the function that
    enqueues a claim.
    """

    def __init__(
        self,
        client: Client,
        claims: Cache[CloudInstance],
        accounts: Mapping[str, CloudAccount],
        owners: Owners,
        *,
        claim_settings: ClaimSettings,
        deps: ClaimDependencies,
    ) -> None:
        self._client = client
        self._claims = claims
        self._claim_settings = claim_settings
        self._deps = deps
        self._wake: Callable[[Key], None] = lambda _: None
        limiter = LaunchLimiter(claim_settings.limits, clock=deps.clock, now=deps.now)
        ages = Ages(deps.clock)
        self.orders = LaunchSpecs(self._changed)
        self.offers = OfferCatalogue(accounts)
        self.calls = CloudCalls(accounts, limiter, now=deps.now, rng=deps.rng, changed=self._changed)
        self.listings = {
            name: InventoryTracker(account, claim_settings.cluster, clock=deps.clock, changed=self._changed)
            for name, account in accounts.items()
        }
        self.sweepers = {
            name: OrphanCollector(client, inventory, claims, grace=claim_settings.sweep_grace, deps=deps)
            for name, inventory in self.listings.items()
        }
        self.controller = CloudInstanceReconciler(
            claims,
            self.listings,
            owners,
            ProcessState(self.calls, self.orders, limiter, ages),
            identity=claim_settings.identity,
            now=deps.now,
        )
        self._limiter = limiter
        self.calls.on_created = self._made
        claims.subscribe(self._claim_changed)
        claims.subscribe(ages.claim_changed)
        for inventory in self.listings.values():
            claims.subscribe(inventory.claim_changed)

    def on_change(self, wake: Callable[[Key], None]) -> None:
        self._wake = wake

    def provider(self, cloud: str) -> ClaimProvider:
        """Return the provider through which a node uses this cloud."""
        inventory, claim_settings = self.listings[cloud], self._claim_settings
        provider = ClaimProvider(
            self._client, inventory.cloud, self._claims, self.orders, cluster=claim_settings.cluster, wake=self._changed
        )
        provider.offers = partial(self.offers.find, cloud)
        return provider

    def outages(self) -> dict[str, str]:
        """Return the current outage of each polled cloud as a sentence, empty if the cloud works."""
        return {name: inventory.outage for name, inventory in self.listings.items() if inventory.is_polled}

    def restore_launches(self, launches: Iterable[LaunchRecord]) -> None:
        """Count launches of earlier processes whose claims are deleted against the launch limits."""
        for launch_record in launches:
            self._limiter.record(launch_record.spec, max(self._deps.now() - launch_record.at, timedelta()))

    def on_owner_changed(self, old: Object | None, new: Object | None) -> None:
        """Enqueue the claims of an owner that was deleted or replaced under its name."""
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            for claim in self._claims.by("owner", old.metadata.identity):
                self._wake(claim.metadata.key)

    async def run(self, terminate_instance: Callable[[TerminateInstance], None]) -> None:
        """Poll the clouds and collect orphans until cancelled. `terminate_instance` executes a termination behind the
        fence.
        """
        await self._claims.synced.wait()
        cloud_calls.seed_limiter(self._limiter, self._claims.all(), self._deps.now())
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.offers.run())
                for name, inventory in self.listings.items():
                    tasks.create_task(inventory.run())
                    tasks.create_task(self.sweepers[name].run(terminate_instance))
        finally:
            await self.calls.close()

    def _made(self, instance: Instance) -> None:
        """Record a created instance at once, even if its claim has changed since the call."""
        for inventory in self.listings.values():
            inventory.record_instance(instance)

    def _claim_changed(self, old: CloudInstance | None, new: CloudInstance | None) -> None:
        """Discard the launch spec as soon as it cannot be needed again, because it holds secrets.

        A claim that has an instance id or is terminated is never launched again. A missing claim proves nothing: the
        launch spec is stored before its claim is written.
        """
        if new is not None:
            self.calls.cancel_stale(new)
            if old is None:  # a newer launch allows the claims of earlier ones to be deleted
                for earlier in self._claims.by("owner", new.spec.owner.identity):
                    self._wake(earlier.metadata.key)
            if new.status.instance_id or new.status.state == "Terminated":
                self.orders.forget(new.metadata.name)
        elif old is not None:
            self.calls.discard(old.metadata.name)
            self.orders.forget(old.metadata.name)

    def _changed(self, claim: str) -> None:
        self._wake(Key("", claim))
