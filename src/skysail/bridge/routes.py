"""Routes of the bridge, from claims alone. Pure.

Claims are the only source: tenants can write Services, EndpointSlices and annotations, but no claims.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal

import msgspec

from skysail.claims.types import CloudInstance

# An instance of these states has a program to connect to.
_CONNECTED = {"Running", "Terminating"}


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One port of the bridge, and the port of an instance that it leads to: of one rank, if the instance is a gang.

    `account` is the account that owns the instance. `namespace` and `owner` are for logs and metrics.
    """

    port: int
    target_port: int
    claim: str
    provider: str
    account: str
    instance: str
    namespace: str
    owner: str
    rank: int = 0
    protocol: Literal["tcp", "http"] = "tcp"


class RouteTable(msgspec.Struct, frozen=True):
    """Routes by port. `conflicts` are ports that two claims have: they lead nowhere, so that no traffic is mixed up."""

    routes: dict[int, Route]
    conflicts: frozenset[int] = frozenset()


def build(claims: Iterable[CloudInstance]) -> RouteTable:
    """Return the routes of all claims with a running instance."""
    claims = tuple(claims)
    # Claims without an instance count as well: their port is theirs, whatever an instance of another claim says.
    holders = Counter(entry.port for claim in claims for entry in claim.status.bridge_ports)
    conflicts = frozenset(port for port, count in holders.items() if count > 1)
    routes = {
        route.port: route
        for claim in claims
        if claim.status.state in _CONNECTED and claim.status.instance_id
        for route in _routes(claim)
        if route.port not in conflicts
    }
    return RouteTable(routes, conflicts)


def _routes(claim: CloudInstance) -> Iterable[Route]:
    return (
        Route(
            port=entry.port,
            target_port=entry.target_port,
            claim=claim.metadata.name,
            provider=claim.spec.provider,
            account=claim.spec.account,
            instance=claim.status.instance_id,
            namespace=claim.spec.owner.namespace,
            owner=claim.spec.owner.name,
            rank=entry.rank,
            protocol=entry.protocol,
        )
        for entry in claim.status.bridge_ports
    )
