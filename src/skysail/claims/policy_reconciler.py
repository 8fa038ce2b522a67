"""Reconciler of OffloadPolicies: builds the snapshot of a policy for its plan. Reads only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

from skysail.claims.limits.offload_policy import OFFLOAD_POLICY, OffloadPolicy
from skysail.claims.plan import policy
from skysail.claims.plan.policy import PolicySnapshot
from skysail.cloud.offers import OfferList
from skysail.core.actions import Event, Plan
from skysail.kube.api.objects import Key
from skysail.kube.cache.cache import Cache


class OffloadPolicyReconciler:
    """Reconciler of OffloadPolicies. `providers`: the providers of all configured nodes."""

    resource = OFFLOAD_POLICY.resource

    def __init__(
        self,
        policies: Cache[OffloadPolicy],
        providers: Iterable[str],
        offers: Callable[[], Mapping[str, OfferList]],
        now: Callable[[], datetime],
    ) -> None:
        self._policies = policies
        self._providers = tuple(sorted(providers))
        self._offers = offers
        self._now = now

    async def observe(self, key: Key) -> PolicySnapshot | None:
        found = self._policies.get(key)
        if found is None:
            return None
        return PolicySnapshot(object=found, now=self._now(), providers=self._providers, offers=self._offers())

    def plan(self, snapshot: PolicySnapshot) -> Plan:
        return policy.plan(snapshot)

    def on_rejected(self, snapshot: PolicySnapshot, event: Event) -> Plan:
        return policy.rejected(snapshot, event)
