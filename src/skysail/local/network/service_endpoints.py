"""Which endpoints stand behind each port of each ClusterIP, computed from Services and EndpointSlices. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from skysail.local.network.objects import EndpointSlice, Service, ServicePort, by_service


class Place(msgspec.Struct, frozen=True, order=True):
    address: str
    port: int


def build(services: Iterable[Service], slices: Iterable[EndpointSlice]) -> dict[Place, tuple[Place, ...]]:
    """Every TCP port of every Service that has an address, also of those behind which nobody stands."""
    known = by_service(slices)
    return {
        Place(service.spec.cluster_ip, port.port): endpoints(port, known.get(service.metadata.key, ()))
        for service in services
        if service.has_address
        for port in service.spec.ports
        if port.protocol == "TCP"
    }


def endpoints(port: ServicePort, slices: Iterable[EndpointSlice]) -> tuple[Place, ...]:
    """Those that are ready; where none is, those that leave and still serve."""
    ready: set[Place] = set()
    leaving: set[Place] = set()
    for slice_ in slices:
        number = _number(port, slice_)
        if number is None:
            continue
        for endpoint in slice_.endpoints or ():
            places = {Place(address, number) for address in endpoint.addresses[:1]}
            if endpoint.is_ready:
                ready |= places
            elif endpoint.still_serves:
                leaving |= places
    return tuple(sorted(ready or leaving))


def _number(port: ServicePort, slice_: EndpointSlice) -> int | None:
    """A slice names its ports as the Service does, and numbers them as the pods do."""
    return next((there.port for there in slice_.ports or () if (there.name or "") == port.name), None)
