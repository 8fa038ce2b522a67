"""Endpoints of each port of each ClusterIP, computed from Services and EndpointSlices. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from skysail.kube.api.objects import Key
from skysail.local.network.objects import EndpointSlice, Service, ServicePort, by_service

_SHARE_OF_ONE_NAMESPACE = 4


class ServiceEndpoint(msgspec.Struct, frozen=True, order=True):
    address: str
    port: int


class Routes(msgspec.Struct, frozen=True):
    """Endpoints of each served port, and the Services with ports beyond the limits of their namespaces."""

    served: dict[ServiceEndpoint, tuple[ServiceEndpoint, ...]]
    truncated: tuple[Key, ...]


def build(services: Iterable[Service], slices: Iterable[EndpointSlice], *, max_ports: int) -> Routes:
    """Return the endpoints of every TCP port of every Service with an address. The endpoints may be empty.

    Each port needs a descriptor of the node. So all Services together get at most `max_ports`, and the Services of one
    namespace a quarter of that.
    """
    known = by_service(slices)
    served: dict[ServiceEndpoint, tuple[ServiceEndpoint, ...]] = {}
    truncated: dict[Key, None] = {}
    taken: Counter[str] = Counter()
    for service in sorted(services, key=lambda service: service.metadata.key):
        namespace = service.metadata.namespace
        for port in service.spec.ports if service.has_address else ():
            if port.protocol != "TCP":
                continue
            if taken[namespace] >= max_ports // _SHARE_OF_ONE_NAMESPACE or taken.total() >= max_ports:
                truncated[service.metadata.key] = None
                break
            taken[namespace] += 1
            endpoint = ServiceEndpoint(service.spec.cluster_ip, port.port)
            served[endpoint] = endpoints(port, known.get(service.metadata.key, ()))
    return Routes(served, tuple(truncated))


def endpoints(port: ServicePort, slices: Iterable[EndpointSlice]) -> tuple[ServiceEndpoint, ...]:
    """Return the ready endpoints. If there is none: those that are terminating and still serve."""
    ready: set[ServiceEndpoint] = set()
    leaving: set[ServiceEndpoint] = set()
    for slice_ in slices:
        number = _number(port, slice_)
        if number is None:
            continue
        for endpoint in slice_.endpoints or ():
            service_endpoints = {ServiceEndpoint(address, number) for address in endpoint.addresses[:1]}
            if endpoint.is_ready:
                ready |= service_endpoints
            elif endpoint.still_serves:
                leaving |= service_endpoints
    return tuple(sorted(ready or leaving))


def _number(port: ServicePort, slice_: EndpointSlice) -> int | None:
    """Return the port number of the pods, by the name of the Service's port. Returns None if the slice lacks it."""
    return next(
        (endpoint_port.port for endpoint_port in slice_.ports or () if (endpoint_port.name or "") == port.name), None
    )
