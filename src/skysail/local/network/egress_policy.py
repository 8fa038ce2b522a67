"""Egress policy of pods: the outside addresses that they may reach.

The policy checks addresses, because a name can resolve to anything. Exceptions are configured by the user.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

import msgspec

from skysail.local.addresses import POD_RANGE, SERVICE_RANGE
from skysail.local.errors import Misused
from skysail.runtimes.fetch.network import address_policy

Address = IPv4Address | IPv6Address
_OWN_RANGES = (IPv4Network(POD_RANGE), IPv4Network(SERVICE_RANGE))
_ANY_PORT = 9
_EVERYBODY = IPv4Address("255.255.255.255")
_THIS_HOST = IPv4Network("0.0.0.0/8")
# No private network uses the documentation ranges, and some test networks serve public names there.
_DOCUMENTATION: tuple[IPv4Network | IPv6Network, ...] = (
    *map(IPv4Network, ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")),
    *map(IPv6Network, ("2001:db8::/32", "3fff::/20")),
)
_IS_PRIVATE = "it is in a private or reserved network, which `SKYSAIL_ALLOWED_NETWORKS=ADDRESS/BITS skysail up` opens"


def is_of_this_machine(address: Address) -> bool:
    """Return whether this machine has the address: then the source of a connection to it is the same. Sends nothing."""
    family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), _ANY_PORT))
        except OSError:
            return False
        return ip_address(probe.getsockname()[0]) == address


def parse_networks(spelling: str) -> tuple[IPv4Network | IPv6Network, ...]:
    """Parse networks or addresses, separated by commas. Raises Misused."""
    try:
        return tuple(ip_network(part.strip()) for part in spelling.split(",") if part.strip())
    except ValueError as error:
        raise Misused(f"SKYSAIL_ALLOWED_NETWORKS is ADDRESS/BITS,ADDRESS/BITS: {error}.") from error


class EgressPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Exceptions of the user, and the check.

    `exceptions` and `servers` (host and port) are allowed although the default denies them.
    A network as exception allows its private addresses. It does not include addresses of this machine, of the cluster
    and of a cloud's credentials, even if they are inside: each of these must be listed by itself.
    """

    is_host_address: Callable[[Address], bool] = is_of_this_machine
    exceptions: tuple[IPv4Network | IPv6Network, ...] = ()
    servers: frozenset[tuple[str, int]] = frozenset()

    def deny_reason(self, host: str, port: int, addresses: Iterable[str]) -> str | None:
        """Return why a host with these addresses is denied, or None. One denied address is enough."""
        if (host, port) in self.servers:
            return None
        return next(filter(None, map(self.address_deny_reason, addresses)), None)

    def address_deny_reason(self, spelling: str) -> str | None:
        """Return why this numeric address is denied. Returns None if it is allowed.

        IPv6 addresses may embed IPv4 addresses: each address that a gateway or tunnel would use is checked.
        """
        embedded_first = reversed(address_policy.meanings(ip_address(spelling)))
        return next(filter(None, map(self._closed, embedded_first)), None)

    def _closed(self, address: Address) -> str | None:
        opened = [network for network in self.exceptions if address in network]
        if any(network.num_addresses == 1 for network in opened):
            return None
        closed = (
            (address.is_loopback or address.is_unspecified or address in _THIS_HOST, "it is this machine's loopback"),
            (address.is_link_local or address in address_policy.CREDENTIAL_ADDRESSES, "clouds keep credentials there"),
            (address.is_multicast or address == _EVERYBODY, "it is not the address of one machine"),
            (any(address in range_ for range_ in _OWN_RANGES), "it is inside the cluster, so add it to NO_PROXY"),
            (self.is_host_address(address), "it is an address of this machine itself"),
            (not opened and not _is_public(address), _IS_PRIVATE),
        )
        return next((message for is_so, message in closed if is_so), None)


def _is_public(address: Address) -> bool:
    return address_policy.is_public(address) or any(address in network for network in _DOCUMENTATION)
