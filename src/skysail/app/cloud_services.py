"""Services of pods at clouds, in the operator's process."""

from __future__ import annotations

from typing import Any

from skysail.app.bridge import can_reach
from skysail.base.settings import Settings
from skysail.claims.bridging.bridge_addresses import BridgeAddresses
from skysail.claims.bridging.bridge_ports import BridgePorts
from skysail.claims.dependencies import ClaimDependencies
from skysail.claims.manager import ClaimManager
from skysail.claims.types import CloudInstance
from skysail.core.executor import CacheRegistry, Executor
from skysail.core.fence import Fence
from skysail.kinds.cloud_services.caches import Caches
from skysail.kinds.cloud_services.reconciler import CloudServiceReconciler
from skysail.kinds.cloud_services.tunnel_reconciler import TunnelReconciler
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import Client


class CloudServicesModule:
    """The executor is its own: its caches hold all Services, and the EndpointSlices that Skysail wrote.

    The second client is fenced.
    """

    def __init__(
        self,
        clients: tuple[Client, Client],
        settings: Settings,
        fence: Fence,
        *,
        manager: ClaimManager,
        claims: Cache[CloudInstance],
        deps: ClaimDependencies,
    ) -> None:
        client, fenced_client = clients
        self.caches = Caches.create(settings.nodes)
        self.addresses = BridgeAddresses(settings.bridge_address, settings.operator_namespace)
        self.ports = BridgePorts(fenced_client, settings.operator_namespace, claims, now=deps.now, rng=deps.rng)
        reachable = {name: can_reach(inventory.cloud) for name, inventory in manager.listings.items()}
        self.services = CloudServiceReconciler(
            self.caches, claims, self.ports, self.addresses, reachable=reachable, now=deps.now
        )
        self.tunnels = TunnelReconciler(self.caches, deps.now)
        self.executor = Executor(client, CacheRegistry(self.caches.services, self.caches.slices, claims), fence)

    @property
    def new_caches(self) -> tuple[Cache[Any], ...]:
        """Return the caches that the process has to fill."""
        return (self.caches.services, *self.caches.pods, self.caches.slices, *self.addresses.caches)
