"""Connects the parts of `claims` in one process: inventories, cloud calls, launch specs, launch limits, orphans."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta

import msgspec

from skysail.claims.dependencies import Surroundings
from skysail.claims.limits.launch_history import Launch
from skysail.claims.limits.launch_limiter import Brake, Limits
from skysail.claims.orphan_collector import Sweeper
from skysail.claims.provider import ClaimedProvider
from skysail.claims.reconciler import Claims, Desk, Owners
from skysail.claims.tracking import cloud_calls
from skysail.claims.tracking.cloud_calls import Calls
from skysail.claims.tracking.inventory import Listings
from skysail.claims.tracking.launch_specs import Orders
from skysail.claims.tracking.uptime import Ages
from skysail.claims.types import CLOUD_INSTANCE, CloudInstance
from skysail.cloud.account import Cloud, Instance
from skysail.core.actions import End
from skysail.kube.api.objects import Key, Object
from skysail.kube.api.rbac import Right, reading
from skysail.kube.api.resources import POD
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import Client

RIGHTS = (
    reading(CLOUD_INSTANCE.resource),
    Right(CLOUD_INSTANCE.resource, ("create", "delete", "patch")),
    Right(CLOUD_INSTANCE.resource, ("update",), subresource="status"),
    Right(POD, ("get",)),
)


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of all claims. `cluster` marks our instances at a cloud: two clusters may share an account."""

    cluster: str
    identity: str
    limits: Limits = Limits()
    sweep_grace: float = 600.0


class Bureau:
    """All parts of `claims` in one process.

    The controller of the process uses `controller`, its executor uses `calls`. `attach` sets the function that
    enqueues a claim.
    """

    def __init__(
        self,
        client: Client,
        claims: Cache[CloudInstance],
        clouds: Mapping[str, Cloud],
        owners: Owners,
        *,
        rules: Rules,
        around: Surroundings,
    ) -> None:
        self._client = client
        self._claims = claims
        self._rules = rules
        self._around = around
        self._wake: Callable[[Key], None] = lambda _: None
        brake = Brake(rules.limits, clock=around.clock, now=around.now)
        ages = Ages(around.clock)
        self.orders = Orders(self._changed)
        self.calls = Calls(clouds, brake, now=around.now, rng=around.rng, changed=self._changed)
        self.listings = {
            name: Listings(cloud, rules.cluster, clock=around.clock, changed=self._changed)
            for name, cloud in clouds.items()
        }
        self.sweepers = {
            name: Sweeper(client, listings, claims, grace=rules.sweep_grace, around=around)
            for name, listings in self.listings.items()
        }
        self.controller = Claims(
            claims,
            self.listings,
            owners,
            Desk(self.calls, self.orders, brake, ages),
            identity=rules.identity,
            now=around.now,
        )
        self._brake = brake
        self.calls.made = self._made
        claims.subscribe(self._claim_changed)
        claims.subscribe(ages.claim_changed)
        for listings in self.listings.values():
            claims.subscribe(listings.claim_changed)

    def attach(self, wake: Callable[[Key], None]) -> None:
        self._wake = wake

    def provider(self, cloud: str) -> ClaimedProvider:
        """Return the provider through which a node uses this cloud."""
        listings, rules = self.listings[cloud], self._rules
        return ClaimedProvider(
            self._client, listings.cloud, self._claims, self.orders, cluster=rules.cluster, wake=self._changed
        )

    def outages(self) -> dict[str, str]:
        """Return the current outage of each polled cloud as a sentence, empty if the cloud works."""
        return {name: listings.outage for name, listings in self.listings.items() if listings.is_polled}

    def remember(self, launches: Iterable[Launch]) -> None:
        """Count launches of earlier processes whose claims are deleted against the launch limits."""
        for launch in launches:
            self._brake.count(launch.spec, max(self._around.now() - launch.at, timedelta()))

    def owner_changed(self, old: Object | None, new: Object | None) -> None:
        """Enqueue the claims of an owner that was deleted or replaced under its name."""
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            for claim in self._claims.by("for", old.metadata.identity):
                self._wake(claim.metadata.key)

    async def run(self, end: Callable[[End], None]) -> None:
        """Poll the clouds and collect orphans until cancelled. `end` executes a termination behind the fence."""
        await self._claims.synced.wait()
        cloud_calls.seed(self._brake, self._claims.all(), self._around.now())
        try:
            async with asyncio.TaskGroup() as tasks:
                for name, listings in self.listings.items():
                    tasks.create_task(listings.run())
                    tasks.create_task(self.sweepers[name].run(end))
        finally:
            await self.calls.close()

    def _made(self, instance: Instance) -> None:
        """Record a created instance at once, even if its claim has changed since the call."""
        for listings in self.listings.values():
            listings.saw(instance)

    def _claim_changed(self, old: CloudInstance | None, new: CloudInstance | None) -> None:
        """Discard the launch spec as soon as it cannot be needed again, because it holds secrets.

        A claim that has an instance id or is terminated is never launched again. A missing claim proves nothing: the
        launch spec is stored before its claim is written.
        """
        if new is not None:
            self.calls.heed(new)
            if old is None:  # a newer launch allows the claims of earlier ones to be deleted
                for earlier in self._claims.by("for", new.spec.for_.identity):
                    self._wake(earlier.metadata.key)
            if new.status.instance_id or new.status.state == "Terminated":
                self.orders.forget(new.metadata.name)
        elif old is not None:
            self.calls.forget(old.metadata.name)
            self.orders.forget(old.metadata.name)

    def _changed(self, claim: str) -> None:
        self._wake(Key("", claim))
