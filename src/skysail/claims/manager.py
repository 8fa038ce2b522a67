"""Everything about claims that one process holds, joined: clouds and their listings, calls, orders, brake, sweepers."""

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
    """`cluster` marks what is ours at a cloud: two clusters may share an account."""

    cluster: str
    identity: str
    limits: Limits = Limits()
    sweep_grace: float = 600.0


class Bureau:
    """`controller` and `calls` are for the loop and the performer of the process; `attach` tells who wakes a claim."""

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
        """A cloud as a node sees it."""
        listings, rules = self.listings[cloud], self._rules
        return ClaimedProvider(
            self._client, listings.cloud, self._claims, self.orders, cluster=rules.cluster, wake=self._changed
        )

    def outages(self) -> dict[str, str]:
        """Why each cloud that this process asks cannot be relied on now, as a sentence; empty where it can."""
        return {name: listings.outage for name, listings in self.listings.items() if listings.is_polled}

    def remember(self, launches: Iterable[Launch]) -> None:
        """Launches of earlier processes whose claims are gone: the brake counts them."""
        for launch in launches:
            self._brake.count(launch.spec, max(self._around.now() - launch.at, timedelta()))

    def owner_changed(self, old: Object | None, new: Object | None) -> None:
        """Something that instances may work for is gone, or another has its name."""
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            for claim in self._claims.by("for", old.metadata.identity):
                self._wake(claim.metadata.key)

    async def run(self, end: Callable[[End], None]) -> None:
        """Until cancelled: poll the clouds, and sweep. `end` performs an effect, behind the fence."""
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
        """The answer to a call is known at once, whatever became of its claim meanwhile."""
        for listings in self.listings.values():
            listings.saw(instance)

    def _claim_changed(self, old: CloudInstance | None, new: CloudInstance | None) -> None:
        """Not when a claim is looked up in vain: the order comes before the claim.

        An order holds secrets, and one with an id, or an end, is never carried out again.
        """
        if new is not None:
            self.calls.heed(new)
            if old is None:  # an earlier launch for the same object may go now
                for earlier in self._claims.by("for", new.spec.for_.identity):
                    self._wake(earlier.metadata.key)
            if new.status.instance_id or new.status.state == "Terminated":
                self.orders.forget(new.metadata.name)
        elif old is not None:
            self.calls.forget(old.metadata.name)
            self.orders.forget(old.metadata.name)

    def _changed(self, claim: str) -> None:
        self._wake(Key("", claim))
