"""Placement in the operator's process: webhooks, the controller of pods without a node, and annotations of Jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from skysail.base.settings import Settings
from skysail.claims.dependencies import ClaimDependencies
from skysail.claims.gangs import GangRef
from skysail.claims.manager import ClaimManager
from skysail.claims.requirements.cost_cap import CostCap
from skysail.claims.types import CloudInstance
from skysail.cloud.offers import OfferList
from skysail.cloud.provider import Features
from skysail.core.executor import CacheRegistry, Executor
from skysail.core.fence import Fence
from skysail.kinds.offload import placement_webhook
from skysail.kinds.offload.caches import Caches
from skysail.kinds.offload.config import offload_config
from skysail.kinds.offload.objects import Pod
from skysail.kinds.offload.observer import PlacementObserver
from skysail.kinds.offload.reconciler import JobReconciler, PodReconciler
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import Client
from skysail.node import pod_types
from skysail.node.config import cloud_pod
from skysail.node.sync import cloud_requirements, unsupported_fields


class OffloadModule:
    """The executor is its own: its caches hold pods without a node and all Jobs."""

    def __init__(
        self,
        client: Client,
        settings: Settings,
        fence: Fence,
        *,
        manager: ClaimManager,
        claims: Cache[CloudInstance],
        deps: ClaimDependencies,
    ) -> None:
        config = offload_config(settings)
        self.caches = Caches.create(manager.limits.policies, manager.limits.namespaces)
        self.observer = PlacementObserver(
            client, self.caches, config, ManagerClouds(manager), now=deps.now, clock=deps.clock
        )
        self.pods = PodReconciler(self.caches, self.observer, config, deps.now)
        self.jobs = JobReconciler(self.caches.jobs, claims)
        self.executor = Executor(client, CacheRegistry(self.caches.pods, self.caches.jobs), fence)
        self.hooks = placement_webhook.hooks(self.observer, config)
        manager.offers.on_change(self.pods.enqueue_all)

    async def find_gang(self, pod: pod_types.Pod) -> GangRef | None:
        """Return the gang of a pod at a cloud node, or None if it has none."""
        return await self.observer.gang(_as_placed(pod))

    async def find_cost_cap(self, pod: pod_types.Pod) -> CostCap:
        """Return the cap on the cost of a pod at a cloud node that its owners set."""
        return await self.observer.cost_cap(_as_placed(pod))

    @property
    def new_caches(self) -> tuple[Cache[Any], ...]:
        """Return the caches that the process has to fill for placement."""
        return self.caches.pods, self.caches.jobs, self.caches.nodes

    @property
    def needed_caches(self) -> tuple[Cache[Any], ...]:
        """Return the caches that must be full before the first placement."""
        return (*self.new_caches, self.caches.policies, self.caches.namespaces)


def _as_placed(pod: pod_types.Pod) -> Pod:
    """Return the fields of a node's pod that its owners and its gang depend on."""
    return Pod(pod.metadata, spec={"subdomain": pod.spec.subdomain})


class ManagerClouds:
    """The clouds of the claim manager, as placement sees them."""

    def __init__(self, manager: ClaimManager) -> None:
        self._manager = manager
        self.accounts = frozenset(manager.listings)

    async def offers(self, provider: str) -> OfferList | None:
        return await self._manager.offers.find(provider)

    def outages(self) -> Mapping[str, str]:
        return self._manager.outages()

    def exhausted(self, pod: Pod) -> frozenset[str]:
        owner = pod.metadata.controller
        return frozenset() if owner is None else self._manager.exhausted(pod.metadata.namespace, owner.uid)

    def features(self, provider: str) -> Features:
        return self._manager.listings[provider].cloud.features

    def unsupported(self, pod: Pod, provider: str) -> tuple[str, ...]:
        """Return fields that the provider's node would reject. A pod that cannot be decoded has none."""
        try:
            found = msgspec.convert(msgspec.to_builtins(pod), pod_types.Pod)
        except msgspec.ValidationError:
            return ()
        # A claim is one container, whatever the cloud could do.
        features = msgspec.structs.replace(self.features(provider), multi_container=False)
        rejected = unsupported_fields.find(cloud_pod.effective(found, provider), features).rejected
        return (*rejected, *cloud_requirements.unsupported_volumes(found, provider))
