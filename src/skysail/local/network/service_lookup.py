"""Addresses inside the local cluster at which this machine reaches a Service."""

from __future__ import annotations

import msgspec

from skysail.kube.api.resources import SERVICE
from skysail.kube.client.client import Client
from skysail.kube.client.errors import NotFound
from skysail.local.errors import Misused
from skysail.local.network import service_endpoints
from skysail.local.network.objects import ENDPOINT_SLICE, SERVICE_NAME, EndpointSlice, Service, ServicePort
from skysail.local.network.service_endpoints import ServiceEndpoint


class ServiceTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses of a Service. `addresses` are tried in turn; `is_served`: whether the Service has endpoints now."""

    port: int
    addresses: tuple[ServiceEndpoint, ...]
    is_served: bool


class _Slices(msgspec.Struct):
    items: list[EndpointSlice]


async def find(client: Client, namespace: str, name: str, port: str = "") -> ServiceTarget:
    """Return the addresses of a port of a Service, by name or number. By default its only port. Raises Misused."""
    try:
        service = await client.get(SERVICE, namespace, name, Service)
    except NotFound as error:
        raise Misused(
            f"Service {name} not found in namespace {namespace}: `skysail kubectl get services -A` lists them."
        ) from error
    chosen = choose(service, port)
    selector = {"labelSelector": f"{SERVICE_NAME}={name}"}
    slices = msgspec.json.decode(await client.list_page(ENDPOINT_SLICE, namespace, selector), type=_Slices).items
    endpoints = service_endpoints.endpoints(chosen, slices)
    addresses = (ServiceEndpoint(service.spec.cluster_ip, chosen.port),) if service.has_address else endpoints
    return ServiceTarget(port=chosen.port, addresses=addresses, is_served=bool(endpoints))


def choose(service: Service, port: str) -> ServicePort:
    """Return the chosen port. Raises `Misused` with the ports to choose from."""
    name = service.metadata.name
    if service.spec.type == "ExternalName":
        raise Misused(f"Service {name} is an alias of {service.spec.external_name}: open that instead.")
    ports = [known for known in service.spec.ports if known.protocol == "TCP"]
    if not ports:
        raise Misused(f"Service {name} has no TCP port: only TCP ports can be opened.")
    meant = [known for known in ports if port in {known.name, str(known.port)}] if port else ports
    if len(meant) == 1:
        return meant[0]
    known = " or ".join(f"{name}:{known.name or known.port}" for known in ports)
    raise Misused(f"Service {name} has {f'no port {port}' if port else 'several ports'}: open {known}.")
