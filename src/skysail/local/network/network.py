"""Network of one node: pods, DNS and Services, synchronised with the API server. Runs inside the local cluster."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import Callable

from skysail.base import open_files
from skysail.base.open_files import CallerLimits, LimitedListener
from skysail.kube.api.objects import Key
from skysail.kube.api.resources import SERVICE
from skysail.kube.cache.cache import Cache
from skysail.kube.cache.reflector import Reflector
from skysail.kube.client.client import Client
from skysail.local.addresses import CLUSTER_IP
from skysail.local.network import dns_server, dns_zone, egress_proxy, interfaces, netns, service_endpoints
from skysail.local.network.dns_forwarder import ForwarderClient
from skysail.local.network.dns_zone import Zone
from skysail.local.network.http_proxy import HttpProxy
from skysail.local.network.objects import ENDPOINT_SLICE, EndpointSlice, Service
from skysail.local.network.pod_network import PodNetwork
from skysail.local.network.policy.isolation import Peer
from skysail.local.network.policy.policy_enforcer import PolicyEnforcer
from skysail.local.network.service_endpoints import ServiceEndpoint
from skysail.local.network.service_proxy import ServiceProxy

DNS_PORT = 53
_BACKLOG = 128
_SHARE_OF_SERVICES = 4  # of the descriptors of this process
_MAX_LOGGED = 10

log = logging.getLogger(__name__)


class Network:
    """Network of one local cluster.

    `pods` attaches pods; `ready` is set when DNS and Services are served, too.
    """

    def __init__(
        self, client: Client, rng: random.Random, *, load_policies: Callable[[str], None] | None = None
    ) -> None:
        """`load_policies` loads a ruleset of NetworkPolicies; None if this machine cannot."""
        self.services = Cache(SERVICE, Service)
        self.slices = Cache(ENDPOINT_SLICE, EndpointSlice)
        self.ready = asyncio.Event()
        self._zone_cache = dns_server.ZoneCache(self._zone)
        self.pods = PodNetwork(changed=self._touch_pods, admit=self._admit)
        self._policies = PolicyEnforcer(
            client,
            lambda: self.pods.addresses,
            rng,
            proxy_port=egress_proxy.INNER_PORT,
            outer_port=egress_proxy.OUTER_PORT,
            load=load_policies,
        )
        self._routes: dict[ServiceEndpoint, tuple[ServiceEndpoint, ...]] = {}
        self._dns_responder = dns_server.DnsResponder(self._zone_cache, rng=rng, upstream=ForwarderClient())
        self._reflectors = (
            Reflector(client, self.services, rng=rng),
            Reflector(client, self.slices, rng=rng),
        )
        self._changed = asyncio.Event()
        self.services.subscribe(self._touch)
        self.slices.subscribe(self._touch)

    async def run(self) -> None:
        """Run until cancelled. First kills the processes and removes the namespaces that an earlier process left."""
        limits = CallerLimits.of_this_process()
        proxy = ServiceProxy(lambda service_endpoint: listen(service_endpoint, limits), self._allows)
        way_out = HttpProxy(egress_proxy.cluster_side(self._resolve, policy=self))
        await self.pods.open()
        try:
            await way_out.serve(_listen_on_cluster_ip(egress_proxy.INNER_PORT, limits))
            dns_listener = _listen_on_cluster_ip(DNS_PORT, limits)
            async with dns_server.serve(self._dns_responder, dns_listener), asyncio.TaskGroup() as tasks:
                for reflector in self._reflectors:
                    tasks.create_task(reflector.run())
                tasks.create_task(self._follow(proxy))
                tasks.create_task(self._policies.run())
        finally:
            await way_out.close()
            await proxy.close()
            await self.pods.close()

    async def _follow(self, proxy: ServiceProxy) -> None:
        """Serve the content of the caches for ever. Concurrent changes are batched."""
        await self.services.synced.wait()
        await self.slices.synced.wait()
        max_ports = open_files.limit() // _SHARE_OF_SERVICES
        truncated: tuple[Key, ...] = ()
        while True:
            self._changed.clear()
            routes = service_endpoints.build(self.services.all(), self.slices.all(), max_ports=max_ports)
            if routes.truncated != truncated:
                truncated = routes.truncated
                names = [str(key) for key in truncated[:_MAX_LOGGED]]
                log.warning("service ports above the limit, not served", extra={"services": names})
            self._routes = routes.served
            await proxy.sync(routes.served)
            self.ready.set()
            await self._changed.wait()

    def allows(self, source: str, destination: str, port: int) -> bool:
        """Return whether a pod may connect to this address, which may be that of a Service, through the egress proxy.

        The service proxy chooses the endpoint afterwards, and sees only the egress proxy. So all must be allowed.
        """
        endpoints = self._routes.get(ServiceEndpoint(destination, port), (ServiceEndpoint(destination, port),))
        return all(self._allows(source, each.address, each.port) for each in endpoints)

    def destinations(self, source: str, port: int) -> tuple[Peer, ...] | None:
        """Return the networks that a pod may reach at this port; None if it may reach all."""
        return self._policies.isolation.destinations(source, port)

    def _allows(self, source: str, destination: str, port: int) -> bool:
        isolation = self._policies.isolation
        # The outer part of the egress proxy would see us as its caller, not the pod, and allow everything.
        if (destination, port) == (CLUSTER_IP, egress_proxy.OUTER_PORT) and isolation.isolates_egress(source):
            return False
        return isolation.allows(source, destination, port)

    async def _admit(self, uid: str, namespace: str) -> None:
        await self._policies.admit(uid, namespace)

    def _touch_pods(self) -> None:
        self._zone_cache.touch()
        self._policies.touch()

    def _touch(self, _old: object, _new: object) -> None:
        self._changed.set()
        self._zone_cache.touch()

    def _zone(self) -> Zone:
        return dns_zone.build(self.services.all(), self.slices.all(), self.pods.own_pods)

    def _resolve(self, host: str, caller: str) -> list[str]:
        return dns_zone.resolve(self._zone_cache.zone, host, self.pods.namespace_of(caller))


def _listen_on_cluster_ip(port: int, limits: CallerLimits) -> socket.socket:
    return LimitedListener(socket.create_server((CLUSTER_IP, port), backlog=_BACKLOG), limits)


async def listen(service_endpoint: ServiceEndpoint, limits: CallerLimits) -> socket.socket:
    """Return a listening socket at an address of the Service range."""
    listener = await asyncio.to_thread(netns.make_socket, interfaces.SERVICES)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((service_endpoint.address, service_endpoint.port))
    except OSError:
        listener.close()
        raise
    return LimitedListener(listener, limits)
