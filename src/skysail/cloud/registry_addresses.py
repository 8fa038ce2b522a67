"""Addresses of registries that the operator may connect to.

A pod names its image, so a tenant chooses the host. Without this check, an image name would make the operator send
requests to cluster-internal services. `allowed` are exceptions of the administrator: CIDRs, host patterns, and
`http://HOST:PORT` for a registry without TLS.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from aiohttp.abc import AbstractResolver, ResolveResult

from skysail.runtimes.fetch.network import address_policy

_PLAIN = "http://"


class AddressDenied(Exception):
    """The egress policy denies an address. The message is a clause that fits into a sentence."""


class RegistryAddresses:
    """Egress policy of registries. `mirrors` are hosts and ports of mirrors, which may have private addresses."""

    def __init__(self, allowed: Sequence[str] = (), mirrors: Collection[tuple[str, int]] = ()) -> None:
        self._mirrors = frozenset(mirrors)
        self._plain = frozenset(entry.removeprefix(_PLAIN) for entry in allowed if entry.startswith(_PLAIN))
        names = [entry.removeprefix(_PLAIN) for entry in allowed]
        self._networks = tuple(network for network in map(_network, names) if network is not None)
        self._hosts = tuple(name.lower() for name in names if _network(name) is None)

    def scheme(self, host: str) -> str:
        """Return `http` for a registry that the administrator lists without TLS. `host` includes the port."""
        return "http" if host in self._plain else "https"

    def check(self, host: str, port: int | None, addresses: Sequence[str]) -> None:
        """Raise AddressDenied if one of the addresses of the host is denied."""
        is_listed = (host.lower(), port) in self._mirrors or any(
            fnmatchcase(name, pattern) for name in _spellings(host, port) for pattern in self._hosts
        )
        for spelling in addresses:
            for address in address_policy.meanings(_address(host, spelling)):
                if reason := self._deny_reason(address, is_listed=is_listed):
                    raise AddressDenied(f"{host} is {reason}")

    def _deny_reason(self, address: IPv4Address | IPv6Address, *, is_listed: bool) -> str:
        opened = [network for network in self._networks if address in network]
        if any(network.num_addresses == 1 for network in opened):
            return ""
        if address.is_link_local or address in address_policy.CREDENTIAL_ADDRESSES:
            return "a link-local or cloud metadata address"
        if address.is_multicast:
            return "a multicast address"
        if not is_listed and not opened and not address_policy.is_public(address):
            return "a private address"
        return ""


class PolicyResolver(AbstractResolver):
    """Resolver that checks every address, so that connections go to checked addresses only."""

    def __init__(self, registry_addresses: RegistryAddresses) -> None:
        self._registry_addresses = registry_addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await look_up(host, port)
        self._registry_addresses.check(host, port, found)
        return [_result(host, address, port) for address in found if family in {socket.AF_UNSPEC, _family(address)}]

    async def close(self) -> None: ...


async def look_up(host: str, port: int) -> list[str]:
    """Return all addresses of a host. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(where[0]) for *_, where in found))


def _spellings(host: str, port: int | None) -> tuple[str, ...]:
    name = host.removesuffix(".").lower()
    return (name, f"{name}:{port}")


def _address(host: str, spelling: str) -> IPv4Address | IPv6Address:
    try:
        return ip_address(spelling.partition("%")[0])
    except ValueError as error:
        raise AddressDenied(f"{host} is an invalid address") from error


def _network(entry: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(entry, strict=False)
    except ValueError:
        return None


def _result(host: str, address: str, port: int) -> ResolveResult:
    numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return {"hostname": host, "host": address, "port": port, "family": _family(address), "proto": 0, "flags": numeric}


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
