"""Egress proxy of pods: an HTTP proxy in two parts.

Pods use the inner part, in the local cluster. It connects to names and addresses of the cluster itself, because
programs also send `http://web/` to a proxy, and forwards the rest. The outer part runs in the machine's network, on a
listener inside the local cluster. It resolves names itself and connects to exactly the address that the egress policy
has allowed, so that a DNS answer that changes in between has no effect.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Address, IPv4Network, ip_address
from typing import Protocol

from skysail.local.addresses import CLUSTER_IP, POD_RANGE, SERVICE_RANGE
from skysail.local.cluster.control_client import Control
from skysail.local.errors import NotRunning
from skysail.local.network import http_proxy
from skysail.local.network.egress_policy import EgressPolicy
from skysail.local.network.http_proxy import Opener, ProxyError, ProxyRequest, Upstream
from skysail.local.network.policy.isolation import Isolation, Peer, decode_peers, encode_peers

INNER_PORT = 3128
OUTER_PORT = 3129
_RETRY_SECONDS = 0.05

Lookup = Callable[[str, int], Awaitable[list[str]]]
# Returns the addresses of a host in the cluster, as the pod at the given address resolves it. Empty for other hosts.
Known = Callable[[str, str], list[str]]


class CallerPolicy(Protocol):
    """NetworkPolicies of the pods that use the proxy."""

    def allows(self, source: str, destination: str, port: int) -> bool:
        """Return whether the pod may connect to an address of the cluster."""
        ...

    def destinations(self, source: str, port: int) -> tuple[Peer, ...] | None:
        """Return the networks that the pod may reach at this port; None if it may reach all."""
        ...


def environment() -> dict[str, str]:
    """Return the environment variables of pods: the proxy, and the hosts that need no proxy."""
    direct = f"localhost,127.0.0.0/8,{POD_RANGE},{SERVICE_RANGE},.svc,.cluster.local"
    return {**proxy_env(), "no_proxy": direct, "NO_PROXY": direct}


def proxy_env() -> dict[str, str]:
    """Return the proxy variables for a program of ours that uses no cluster address: its localhost is the machine's."""
    names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
    return dict.fromkeys(names, f"http://{CLUSTER_IP}:{INNER_PORT}")


def operator_env() -> dict[str, str]:
    """Return the variables of the operator and the bridge, which call real clouds through the outer part.

    Not through the inner part, which belongs to the node's agent: a cloud stays reachable while that one restarts.
    """
    proxy = f"http://{CLUSTER_IP}:{OUTER_PORT}"
    # urllib knows no networks in this variable, so addresses are listed alone.
    direct = f"localhost,127.0.0.1,{CLUSTER_IP},{POD_RANGE},{SERVICE_RANGE},.svc,.cluster.local"
    return {"http_proxy": proxy, "https_proxy": proxy, "HTTPS_PROXY": proxy, "no_proxy": direct, "NO_PROXY": direct}


async def make_listener(control: Control, port: int = OUTER_PORT) -> socket.socket:
    """Return the listener of the outer part. Waits until the local cluster can open it."""
    while True:
        try:
            return await asyncio.to_thread(control.listen, CLUSTER_IP, port)
        except NotRunning:
            await asyncio.sleep(_RETRY_SECONDS)


def cluster_side(
    known: Known, outer: tuple[str, int] = (CLUSTER_IP, OUTER_PORT), policy: CallerPolicy | None = None
) -> Opener:
    callers: CallerPolicy = policy or Isolation()

    async def open_(request: ProxyRequest, caller: str) -> Upstream:
        if addresses := known(request.host, caller):
            allowed = [address for address in addresses if callers.allows(caller, address, request.port)]
            if not allowed:
                raise _isolated(request)
            return await http_proxy.connect(request, allowed)
        head, peers = request.as_it_came, callers.destinations(caller, request.port)
        if peers is not None:
            outside = [peer for peer in peers if not _is_of_cluster(peer)]
            if not outside:
                raise _isolated(request)
            head = http_proxy.restrict(head, encode_peers(outside))
        try:
            reader, writer = await asyncio.open_connection(*outer)
        except OSError as error:
            raise ProxyError(
                502, f"{request.where} is not in the cluster, and this cluster has no egress proxy."
            ) from error
        return Upstream(reader, writer, head, b"")

    return open_


def _isolated(request: ProxyRequest) -> ProxyError:
    return ProxyError(403, f"No NetworkPolicy lets this pod connect to {request.where}: add an egress rule.")


def _is_of_cluster(peer: Peer) -> bool:
    """Return whether the peer is part of the pod network, which the outer part never connects to."""
    return IPv4Network(peer.network).subnet_of(IPv4Network(POD_RANGE))


def _within(addresses: list[str], destinations: str) -> list[str]:
    """Return the addresses that are in these networks. Raises ValueError."""
    peers = decode_peers(destinations)
    numbers = [(address, ip_address(address)) for address in addresses]
    return [
        address
        for address, number in numbers
        if isinstance(number, IPv4Address) and any(number in peer for peer in peers)
    ]


async def look_up(host: str, port: int) -> list[str]:
    """Return all addresses of a host, as this machine resolves it. All numeric spellings are understood."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(where[0]) for *_, where in found]


def host_side(policy: EgressPolicy, lookup: Lookup = look_up) -> Opener:
    async def open_(request: ProxyRequest, _caller: str) -> Upstream:
        try:
            addresses = await lookup(request.host, request.port)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ProxyError(
                502, f"{request.host} cannot be resolved by the cluster or by this machine: {reason}."
            ) from error
        if request.destinations is not None:
            try:
                addresses = _within(addresses, request.destinations)
            except ValueError as error:
                raise ProxyError(400, "The destinations of this request cannot be read.") from error
            if not addresses:
                raise _isolated(request)
        if deny_reason := policy.deny_reason(request.host, request.port, addresses):
            raise ProxyError(403, f"Pods may not connect to {request.where}: {deny_reason}.")
        return await http_proxy.connect(request, addresses)

    return open_
