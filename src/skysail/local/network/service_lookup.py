"""How somebody on this machine reaches a Service: which addresses inside the hull to dial for it."""

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
    """`places` are tried in turn; `is_served` is whether anybody stands behind the Service at the moment."""

    port: int
    places: tuple[ServiceEndpoint, ...]
    is_served: bool


class _Slices(msgspec.Struct):
    items: list[EndpointSlice]


async def find(client: Client, namespace: str, name: str, port: str = "") -> ServiceTarget:
    """The way to a port, by name or number, of a Service. Without a port: to the only one that it has."""
    try:
        service = await client.get(SERVICE, namespace, name, Service)
    except NotFound as error:
        raise Misused(
            f"There is no Service {name} in namespace {namespace}: `skysail kubectl get services -A` lists them."
        ) from error
    chosen = choose(service, port)
    selector = {"labelSelector": f"{SERVICE_NAME}={name}"}
    slices = msgspec.json.decode(await client.list_page(ENDPOINT_SLICE, namespace, selector), type=_Slices).items
    endpoints = service_endpoints.endpoints(chosen, slices)
    places = (ServiceEndpoint(service.spec.cluster_ip, chosen.port),) if service.has_address else endpoints
    return ServiceTarget(port=chosen.port, places=places, is_served=bool(endpoints))


def choose(service: Service, port: str) -> ServicePort:
    """The port that is meant. Raises `Misused` with what there is to choose from."""
    name = service.metadata.name
    if service.spec.type == "ExternalName":
        raise Misused(f"Service {name} is only another name for {service.spec.external_name}: open that instead.")
    ports = [known for known in service.spec.ports if known.protocol == "TCP"]
    if not ports:
        raise Misused(f"Service {name} has no TCP port, and others cannot be opened.")
    meant = [known for known in ports if port in {known.name, str(known.port)}] if port else ports
    if len(meant) == 1:
        return meant[0]
    known = " or ".join(f"{name}:{known.name or known.port}" for known in ports)
    raise Misused(f"Service {name} has {f'no port {port}' if port else 'several ports'}: open {known}.")
