"""EndpointSlices that send the traffic of a Service port through the bridge to one instance. Pure.

Slices are output only: tenants can edit them, so no route is ever read back from a slice.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from skysail.kube.api.objects import Meta
from skysail.kube.api.resources import Resource

ENDPOINT_SLICE = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
SERVICE_NAME = "kubernetes.io/service-name"
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
MANAGER = "skysail.dev"
_MAX_NAME_LENGTH = 63
_DIGEST = 12

Manifest = dict[str, Any]


class SlicePort(msgspec.Struct, frozen=True):
    """Port of a Service, as its slices repeat it."""

    name: str
    app_protocol: str = ""


class PodRoute(msgspec.Struct, frozen=True, kw_only=True):
    """A pod behind a Service port: the claim of its instance, its rank in it, and the bridge port that leads there."""

    pod: Meta
    claim: str
    bridge_port: int
    rank: int = 0


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions of an endpoint, with the meaning of the API."""

    ready: bool
    serving: bool
    terminating: bool = False


def slice_name(service: str, route: PodRoute, port: str, address_type: str) -> str:
    """Return the name. The type of addresses of a slice cannot change, so it is part of the name."""
    member = f"{route.claim}:{route.rank}" if route.rank else route.claim
    digest = hashlib.sha256(f"{service}/{member}/{port}/{address_type}".encode()).hexdigest()[:_DIGEST]
    return f"{service[: _MAX_NAME_LENGTH - _DIGEST - 1].rstrip('-.')}-{digest}"


def manifest(
    service: tuple[str, str],
    port: SlicePort,
    route: PodRoute,
    *,
    addresses: tuple[str, ...],
    readiness: Readiness,
) -> Manifest:
    """Return the slice of one Service port (namespace, name) and one pod. `addresses` are those of the bridge."""
    namespace, name = service
    address_type = "IPv6" if ":" in addresses[0] else "IPv4"
    endpoint = {
        "conditions": msgspec.to_builtins(readiness),
        "targetRef": {"kind": "Pod", "namespace": route.pod.namespace, "name": route.pod.name, "uid": route.pod.uid},
    }
    slice_port: Manifest = {"name": port.name, "port": route.bridge_port, "protocol": "TCP"}
    if port.app_protocol:
        slice_port["appProtocol"] = port.app_protocol
    return {
        "apiVersion": ENDPOINT_SLICE.api_version,
        "kind": ENDPOINT_SLICE.kind,
        "metadata": {
            "name": slice_name(name, route, port.name, address_type),
            "namespace": namespace,
            "labels": {SERVICE_NAME: name, MANAGED_BY: MANAGER},
        },
        "addressType": address_type,
        "endpoints": [{"addresses": [address], **endpoint} for address in addresses],
        "ports": [slice_port],
    }
