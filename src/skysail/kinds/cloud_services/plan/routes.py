"""Routes of a Service: from each of its ports, for each pod at a cloud, to a port of the pod. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from skysail.claims.bridging import endpoint_slices
from skysail.claims.bridging.endpoint_slices import PodRoute, Readiness, SlicePort
from skysail.claims.bridging.targets import Target, find_port, target_of, with_ports
from skysail.claims.types import CLOUD_INSTANCE, BridgePort, CloudInstance
from skysail.core.actions import Apply, Delete, Manifest, Owner, PatchStatus
from skysail.kinds.cloud_services.objects import Pod, ServicePort
from skysail.kinds.cloud_services.snapshot import Snapshot
from skysail.kube.api.resources import SERVICE

# Application protocols of Service ports that are HTTP/1.1: IANA's name, and Kubernetes' own for WebSockets.
_HTTP = frozenset({"http", "kubernetes.io/ws"})

Protocol = Literal["tcp", "http"]


class Route(msgspec.Struct, frozen=True):
    """One port of the Service for one pod: the port of the pod, and the port of the bridge, 0 if none is left."""

    port: ServicePort
    pod: Pod
    claim: CloudInstance
    target: Target
    bridge_port: int

    @property
    def protocol(self) -> Protocol:
        return "http" if self.port.app_protocol in _HTTP else "tcp"


def targets(snapshot: Snapshot) -> Iterator[tuple[ServicePort, Pod, CloudInstance, Target]]:
    """Yield the port of each pod behind each TCP port of the Service. Pods without such a port are left out."""
    for member in snapshot.members:
        claim = member.claim
        if claim is None or claim.spec.provider in snapshot.unreachable:
            continue
        for port in snapshot.object.spec.ports:
            number = member.pod.port(port.target_port, port.port) if port.protocol == "TCP" else None
            if number is not None:
                yield port, member.pod, claim, Target(member.rank, number)


def routes(snapshot: Snapshot) -> tuple[Route, ...]:
    return tuple(
        Route(port, pod, claim, target, _bridge_port(snapshot, claim, target))
        for port, pod, claim, target in targets(snapshot)
    )


def needs_port(claim: CloudInstance, target: Target, shared: frozenset[tuple[str, int]]) -> bool:
    """Return whether the claim has no bridge port for this target, or one that belongs to an older claim."""
    entry = find_port(claim, target)
    return entry is None or (claim.metadata.name, entry.port) in shared


def assignments(snapshot: Snapshot, found: tuple[Route, ...]) -> Iterator[PatchStatus]:
    """Yield one write for each claim whose ports change, before any slice names them.

    The write also gives ports back to which no Service leads any more, so that their number stays limited.
    """
    claims = {route.claim.metadata.name: route.claim for route in found}
    for name, claim in claims.items():
        own = tuple(route for route in found if route.claim.metadata.name == name and route.bridge_port)
        ports = with_ports(claim, _entries(snapshot, claim, own))
        if ports != with_ports(claim, ()):
            kept = tuple(entry for entry in ports if (name, target_of(entry)) not in snapshot.unused)
            yield PatchStatus(CLOUD_INSTANCE.resource, claim, {"bridgePorts": msgspec.to_builtins(kept)})


def _entries(snapshot: Snapshot, claim: CloudInstance, found: tuple[Route, ...]) -> Iterator[BridgePort]:
    """Yield the ports of the claim. TCP carries everything, so one Service port that is not HTTP makes it TCP for good.

    Other Services may lead to the same target: HTTP is never put in place of TCP. An App at a cloud has an address for
    HTTP and no other way in, so its ports are always HTTP.
    """
    for target in {route.target: None for route in found}:
        routes_ = [route for route in found if route.target == target]
        entry = find_port(claim, target)
        is_new = needs_port(claim, target, snapshot.shared)
        protocols = {route.protocol for route in routes_} | ({entry.protocol} if entry and not is_new else set())
        yield BridgePort(
            target_port=target.port,
            port=routes_[0].bridge_port,
            rank=target.rank,
            protocol="http" if claim.status.url or protocols == {"http"} else "tcp",
        )


def slices(snapshot: Snapshot, found: tuple[Route, ...]) -> Iterator[Apply]:
    owner = Owner(SERVICE, snapshot.object)
    for route in found:
        if route.bridge_port and snapshot.addresses:
            yield Apply(endpoint_slices.ENDPOINT_SLICE, _manifest(snapshot, route), owner, enforce=True)


def obsolete(snapshot: Snapshot, desired: tuple[Apply, ...]) -> Iterator[Delete]:
    names = {apply.manifest["metadata"]["name"] for apply in desired}
    for slice_ in snapshot.slices:
        if slice_.metadata.name not in names and not slice_.metadata.is_deleting:
            yield Delete(endpoint_slices.ENDPOINT_SLICE, slice_)


def _bridge_port(snapshot: Snapshot, claim: CloudInstance, target: Target) -> int:
    entry = find_port(claim, target)
    if entry is not None and not needs_port(claim, target, snapshot.shared):
        return entry.port
    return snapshot.proposals.get((claim.metadata.name, target), 0)


def _manifest(snapshot: Snapshot, route: Route) -> Manifest:
    metadata = snapshot.object.metadata
    return endpoint_slices.manifest(
        (metadata.namespace, metadata.name),
        SlicePort(route.port.name, route.port.app_protocol),
        PodRoute(
            pod=route.pod.metadata,
            claim=route.claim.metadata.name,
            bridge_port=route.bridge_port,
            rank=route.target.rank,
        ),
        addresses=snapshot.addresses,
        readiness=_readiness(snapshot, route),
    )


def _readiness(snapshot: Snapshot, route: Route) -> Readiness:
    is_leaving = route.pod.metadata.is_deleting or route.claim.metadata.is_deleting
    is_serving = route.pod.is_ready or snapshot.object.spec.publish_not_ready_addresses
    return Readiness(ready=is_serving and not is_leaving, serving=is_serving, terminating=is_leaving)
