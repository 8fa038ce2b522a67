"""Connects the parts of `claims` in one process: inventories, offers, cloud calls, launch specs, limits, orphans."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial

import msgspec

from skysail.claims import claim_specs
from skysail.claims.account_reconciler import SpendAccountReconciler
from skysail.claims.dependencies import ClaimDependencies
from skysail.claims.limits import budget
from skysail.claims.limits.launch_history import LaunchRecord
from skysail.claims.limits.launch_limiter import LaunchLimiter, LaunchLimits
from skysail.claims.limits.limits_reader import LimitsReader
from skysail.claims.limits.offload_policy import OFFLOAD_POLICY
from skysail.claims.limits.spend_account import SPEND_ACCOUNT, SpendAccount
from skysail.claims.orphan_collector import OrphanCollector
from skysail.claims.policy_reconciler import OffloadPolicyReconciler
from skysail.claims.provider import ClaimProvider
from skysail.claims.reconciler import CloudInstanceReconciler, Owners, ProcessState
from skysail.claims.requirements.cloud_requirements import CloudRequirements, OfferLimits
from skysail.claims.requirements.types import RUNPOD
from skysail.claims.tracking import cloud_calls
from skysail.claims.tracking.cloud_calls import CloudCalls
from skysail.claims.tracking.inventory import InventoryTracker
from skysail.claims.tracking.launch_specs import LaunchSpecs
from skysail.claims.tracking.offer_catalogue import OfferCatalogue
from skysail.claims.tracking.uptime import Ages
from skysail.claims.types import CLOUD_INSTANCE, CloudInstance
from skysail.cloud.account import CloudAccount, Instance
from skysail.cloud.errors import Rejected
from skysail.core.actions import TerminateInstance
from skysail.kube.api.objects import IndexKey, Key, Object
from skysail.kube.api.rbac import PolicyRule, read_rule
from skysail.kube.api.resources import NAMESPACE, POD
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import Client

# A cloud without capacity for a pod of a Job is avoided for this long.
_EXHAUSTED_FOR = timedelta(minutes=10)

POLICY_RULES = (
    read_rule(CLOUD_INSTANCE.resource),
    PolicyRule(CLOUD_INSTANCE.resource, ("create", "delete", "patch")),
    PolicyRule(CLOUD_INSTANCE.resource, ("update",), subresource="status"),
    PolicyRule(POD, ("get",)),
    read_rule(OFFLOAD_POLICY.resource),
    PolicyRule(OFFLOAD_POLICY.resource, ("update",), subresource="status"),
    read_rule(SPEND_ACCOUNT.resource),
    PolicyRule(SPEND_ACCOUNT.resource, ("create",)),
    PolicyRule(SPEND_ACCOUNT.resource, ("patch",), subresource="status"),
    read_rule(NAMESPACE),
)


class ClaimSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of all claims. `cluster` marks our instances at a cloud: two clusters may share an account.

    `providers`: the providers of all configured nodes, whether or not there is an account.
    """

    cluster: str
    identity: str
    providers: tuple[str, ...] = ()
    max_gpu_price: float | None = None
    limits: LaunchLimits = LaunchLimits()
    sweep_grace: float = 600.0


class ClaimManager:
    """All parts of `claims` in one process.

    The controller of the process uses `controller`, its executor uses `calls`. `on_change` sets the function that
    enqueues a claim. `account_reconciler` and `policy_reconciler` have controllers of their own, and the process fills
    the caches of `limits`.
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
        self.launch_specs = LaunchSpecs(self._changed)
        self.offers = OfferCatalogue(accounts)
        self.limits = LimitsReader(client, self.offers.current)
        self.account_reconciler = SpendAccountReconciler(client, self.limits, claims, deps.now)
        self.policy_reconciler = OffloadPolicyReconciler(
            self.limits.policies, claim_settings.providers, self.offers.current, deps.now
        )
        self.calls = CloudCalls(accounts, limiter, now=deps.now, rng=deps.rng, changed=self._changed)
        self.listings = {
            name: InventoryTracker(account, claim_settings.cluster, clock=deps.clock, changed=self._changed)
            for name, account in accounts.items()
        }
        self.orphan_collectors = {
            name: OrphanCollector(client, inventory, claims, grace=claim_settings.sweep_grace, deps=deps)
            for name, inventory in self.listings.items()
        }
        self.controller = CloudInstanceReconciler(
            claims,
            self.listings,
            owners,
            ProcessState(self.calls, self.launch_specs, limiter, ages, self.limits),
            identity=claim_settings.identity,
            now=deps.now,
        )
        self._limiter = limiter
        self.calls.on_created = self._made
        claims.subscribe(self._claim_changed)
        claims.subscribe(ages.claim_changed)
        for inventory in self.listings.values():
            claims.subscribe(inventory.claim_changed)
        self.limits.policies.subscribe(lambda *_: self._wake_denied(claims.all()))
        self.limits.namespaces.subscribe(self._namespace_changed)
        self.limits.accounts.subscribe(self._account_changed)

    def on_change(self, wake: Callable[[Key], None]) -> None:
        self._wake = wake

    def provider(self, cloud: str) -> ClaimProvider:
        """Return the provider through which a node uses this cloud."""
        inventory, claim_settings = self.listings[cloud], self._claim_settings
        provider = ClaimProvider(
            self._client,
            inventory.cloud,
            self._claims,
            self.launch_specs,
            cluster=claim_settings.cluster,
            wake=self._changed,
        )
        provider.has_seen = inventory.has_seen
        provider.specs.offers = partial(self.offers.find, cloud)
        provider.specs.limits = partial(self._offer_limits, cloud)
        provider.specs.has_offer = self._has_offer
        return provider

    def enqueue_accounts(self, enqueue: Callable[[Key], None]) -> None:
        """Set the function that enqueues a SpendAccount, after changes of policies, namespaces and claims."""

        def claim_changed(old: CloudInstance | None, new: CloudInstance | None) -> None:
            if old is not None and new is None:
                enqueue(Key("", old.spec.owner.namespace))

        def policy_changed(*_: Object | None) -> None:
            for account in self.limits.accounts.all():
                enqueue(account.metadata.key)

        self._claims.subscribe(claim_changed)
        self.limits.policies.subscribe(policy_changed)

    def enqueue_policies(self, enqueue: Callable[[Key], None]) -> None:
        """Set the function that enqueues an OffloadPolicy, after changes of offers."""

        def offers_changed() -> None:
            for policy in self.limits.policies.all():
                enqueue(policy.metadata.key)

        self.offers.on_change(offers_changed)

    def exhausted(self, namespace: str, controller_uid: str) -> frozenset[str]:
        """Return the clouds that had no capacity for another pod of this controller in the last minutes."""
        since = self._deps.now() - _EXHAUSTED_FOR
        claims = self._claims.by("exhausted", IndexKey(namespace, controller_uid))
        return frozenset(
            claim.spec.provider
            for claim in claims
            if claim.status.end_time is not None and datetime.fromisoformat(claim.status.end_time) > since
        )

    def outages(self) -> dict[str, str]:
        """Return the current outage of each polled cloud as a sentence, empty if the cloud works."""
        return {name: inventory.outage for name, inventory in self.listings.items() if inventory.is_polled}

    def restore_launches(self, launches: Iterable[LaunchRecord]) -> None:
        """Count launches of earlier processes whose claims are deleted against the launch limits."""
        for launch_record in launches:
            self._limiter.record(launch_record.spec, max(self._deps.now() - launch_record.at, timedelta()))

    def on_owner_changed(self, old: Object | None, new: Object | None) -> None:
        """Enqueue the claims of a pod or gang that was deleted or replaced under its name."""
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            members = self._claims.by("pod", IndexKey("", old.metadata.uid))
            mine = [claim for claim in members if claim.spec.owner.namespace == old.metadata.namespace]
            owned = self._claims.by("owner", old.metadata.identity)
            for key in dict.fromkeys(claim.metadata.key for claim in (*mine, *owned)):
                self._wake(key)

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
                    tasks.create_task(self.orphan_collectors[name].run(terminate_instance))
        finally:
            await self.calls.close()

    def _offer_limits(self, cloud: str, namespace: str) -> OfferLimits:
        limits = self.limits.limits(namespace)
        others = {name for name in self.limits.providers(namespace) if name != cloud}
        setting = self._claim_settings.max_gpu_price
        caps = (limits.max_usd_per_gpu_hour, setting if cloud == RUNPOD else None)
        return OfferLimits(
            gpu_types=limits.gpu_types,
            regions=limits.regions,
            max_usd_per_gpu_hour=min((cap for cap in caps if cap is not None), default=None),
            max_lifetime=limits.max_lifetime,
            cheapest_usd_per_gpu_hour=setting,
            alternatives=frozenset(others & self.listings.keys()),
        )

    def _has_offer(self, provider: str, namespace: str, requirements: CloudRequirements) -> bool:
        """Return whether a provider has an offer that fits. A provider whose offers are unknown has none."""
        listed = self.offers.current().get(provider)
        if listed is None:
            return False
        try:
            selection = claim_specs.select(provider, listed, requirements, self._offer_limits(provider, namespace))
        except Rejected:
            return False
        return bool(selection.candidates)

    def _namespace_changed(self, old: Object | None, new: Object | None) -> None:
        namespace = new or old
        assert namespace is not None, "old or new is set"
        self._wake_denied(self._claims.by("denied", IndexKey(namespace.metadata.name, "")))

    def _account_changed(self, old: SpendAccount | None, new: SpendAccount | None) -> None:
        """Enqueue the claims that wait for money or a place, if a reservation was lowered or removed."""
        account = new or old
        assert account is not None, "old or new is set"
        if old is None or new is None or _held(new) < _held(old):
            self._wake_denied(self._claims.by("denied", IndexKey(account.metadata.name, "")))

    def _wake_denied(self, claims: Iterable[CloudInstance]) -> None:
        for claim in claims:
            if claim.status.state in {None, "Claimed"}:
                self._wake(claim.metadata.key)

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
                self.launch_specs.forget(new.metadata.name)
        elif old is not None:
            self.calls.discard(old.metadata.name)
            self.launch_specs.forget(old.metadata.name)

    def _changed(self, claim: str) -> None:
        self._wake(Key("", claim))


def _held(account: SpendAccount) -> tuple[int, float]:
    return len(account.status.reservations), budget.reserved(account.status)
