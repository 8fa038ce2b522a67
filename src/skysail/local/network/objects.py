"""Services and EndpointSlices, with only the fields that DNS and the service proxy need."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from skysail.kube.api.objects import Key, Object
from skysail.kube.api.resources import Resource

ENDPOINT_SLICE = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
SERVICE_NAME = "kubernetes.io/service-name"


class ServicePort(msgspec.Struct, frozen=True, gc=False):
    port: int
    name: str = ""
    protocol: str = "TCP"


class ServiceSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    type: str = "ClusterIP"
    cluster_ip: str = msgspec.field(default="", name="clusterIP")
    external_name: str = ""
    publish_not_ready_addresses: bool = False
    ports: tuple[ServicePort, ...] = ()


class Service(Object, frozen=True, gc=False):
    spec: ServiceSpec

    @property
    def is_headless(self) -> bool:
        return self.spec.cluster_ip == "None"

    @property
    def has_address(self) -> bool:
        return self.spec.cluster_ip not in {"", "None"}


class Conditions(msgspec.Struct, frozen=True, gc=False):
    """Conditions of an endpoint. Missing conditions are true, as the API defines."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class Endpoint(msgspec.Struct, frozen=True, gc=False):
    addresses: tuple[str, ...]
    conditions: Conditions = Conditions()
    hostname: str | None = None

    @property
    def is_ready(self) -> bool:
        return self.conditions.ready is not False

    @property
    def still_serves(self) -> bool:
        """Whether the endpoint is terminating and still serves."""
        return bool(self.conditions.terminating) and self.conditions.serving is not False


class EndpointPort(msgspec.Struct, frozen=True, gc=False):
    name: str | None = None
    port: int | None = None
    protocol: str | None = None


class EndpointSlice(Object, frozen=True, gc=False, rename="camel"):
    address_type: str = "IPv4"
    endpoints: tuple[Endpoint, ...] | None = None
    ports: tuple[EndpointPort, ...] | None = None


def by_service(slices: Iterable[EndpointSlice]) -> dict[Key, list[EndpointSlice]]:
    """Return the slices with usable addresses, by Service."""
    found: dict[Key, list[EndpointSlice]] = defaultdict(list)
    for slice_ in slices:
        service = (slice_.metadata.labels or {}).get(SERVICE_NAME)
        if service and slice_.address_type == "IPv4":
            found[Key(slice_.metadata.namespace, service)].append(slice_)
    return found
