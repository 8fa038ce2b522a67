"""Ports of instances that the bridge leads to: a rank of a gang, and a port of its pod. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from skysail.claims.types import BridgePort, CloudInstance


class Target(NamedTuple):
    """One port of one pod of a claim. A single pod has rank 0."""

    rank: int
    port: int


def target_of(entry: BridgePort) -> Target:
    return Target(entry.rank, entry.target_port)


def find_port(claim: CloudInstance, target: Target) -> BridgePort | None:
    """Return the bridge port that leads to a target, if the claim has one."""
    return next((entry for entry in claim.status.bridge_ports if target_of(entry) == target), None)


def with_ports(claim: CloudInstance, added: Iterable[BridgePort]) -> tuple[BridgePort, ...]:
    """Return the ports of the claim with `added`, which replace those of the same target."""
    ports = {target_of(entry): entry for entry in (*claim.status.bridge_ports, *added)}
    return tuple(ports[target] for target in sorted(ports))
