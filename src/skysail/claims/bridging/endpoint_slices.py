"""EndpointSlices that send the traffic of a Service port through the bridge to one instance. Pure.

Slices are output only: tenants can edit them, so no route is ever read back from a slice.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from skysail.claims.types import BridgePort, CloudInstance
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


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions of an endpoint, with the meaning of the API."""

    ready: bool
    serving: bool
    terminating: bool = False


def find_port(claim: CloudInstance, target: int) -> BridgePort | None:
    """Return the bridge port that leads to a port of the instance, if the claim has one."""
    return next((entry for entry in claim.status.bridge_ports if entry.target_port == target), None)


def slice_name(service: str, claim: str, port: str, address_type: str) -> str:
    """Return the name. The type of addresses of a slice cannot change, so it is part of the name."""
    digest = hashlib.sha256(f"{service}/{claim}/{port}/{address_type}".encode()).hexdigest()[:_DIGEST]
    return f"{service[: _MAX_NAME_LENGTH - _DIGEST - 1].rstrip('-.')}-{digest}"


def manifest(
    service: tuple[str, str],
    port: SlicePort,
    claim: CloudInstance,
    bridge_port: int,
    *,
    addresses: tuple[str, ...],
    readiness: Readiness,
) -> Manifest:
    """Return the slice of one Service port (namespace, name) and one instance. `addresses` are those of the bridge."""
    namespace, name = service
    owner = claim.spec.owner
    address_type = "IPv6" if ":" in addresses[0] else "IPv4"
    endpoint = {
        "conditions": msgspec.to_builtins(readiness),
        "targetRef": {"kind": owner.kind, "namespace": owner.namespace, "name": owner.name, "uid": owner.uid},
    }
    slice_port: Manifest = {"name": port.name, "port": bridge_port, "protocol": "TCP"}
    if port.app_protocol:
        slice_port["appProtocol"] = port.app_protocol
    return {
        "apiVersion": ENDPOINT_SLICE.api_version,
        "kind": ENDPOINT_SLICE.kind,
        "metadata": {
            "name": slice_name(name, claim.metadata.name, port.name, address_type),
            "namespace": namespace,
            "labels": {SERVICE_NAME: name, MANAGED_BY: MANAGER},
        },
        "addressType": address_type,
        "endpoints": [{"addresses": [address], **endpoint} for address in addresses],
        "ports": [slice_port],
    }
