"""Endpoints of each port of each ClusterIP, computed from Services and EndpointSlices. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from skysail.local.network.objects import EndpointSlice, Service, ServicePort, by_service


class ServiceEndpoint(msgspec.Struct, frozen=True, order=True):
    address: str
    port: int


def build(
    services: Iterable[Service], slices: Iterable[EndpointSlice]
) -> dict[ServiceEndpoint, tuple[ServiceEndpoint, ...]]:
    """Return the endpoints of every TCP port of every Service with an address. May be empty."""
    known = by_service(slices)
    return {
        ServiceEndpoint(service.spec.cluster_ip, port.port): endpoints(port, known.get(service.metadata.key, ()))
        for service in services
        if service.has_address
        for port in service.spec.ports
        if port.protocol == "TCP"
    }


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
