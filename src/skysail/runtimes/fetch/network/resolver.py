"""Egress policy at connection time.

Each address of a name is checked, and connections go to exactly the checked addresses, so that a later change of the
name has no effect.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence

from aiohttp.abc import AbstractResolver, ResolveResult

from skysail.runtimes.fetch.errors import AccessDenied, TransientError
from skysail.runtimes.fetch.network import address_policy, blocking
from skysail.runtimes.fetch.network.uris import redact

LookUp = Callable[[str, int], Awaitable[list[str]]]
_SECONDS = 10.0


async def look_up(host: str, port: int) -> list[str]:
    found = await blocking.call(lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    return list(dict.fromkeys(str(where[0]) for *_, where in found))


class AddressGuard:
    """Egress check: permits public addresses, and those that are `allowed`."""

    def __init__(self, allowed: Sequence[str], lookup: LookUp = look_up) -> None:
        self._allowed = allowed
        self._look_up = lookup

    def check(self, uri: str) -> None:
        """Check a URI before any name is resolved. Raises AccessDenied."""
        if reason := address_policy.validate_uri(uri, self._allowed):
            raise AccessDenied("AddressForbidden", f"{redact(uri)} cannot be downloaded. {reason}")

    async def addresses_of(self, host: str, port: int) -> list[str]:
        """Resolve a host and check all of its addresses.

        Raises AccessDenied if one is forbidden, MayPass if it cannot be resolved.
        """
        try:
            async with asyncio.timeout(_SECONDS):
                found = await self._look_up(host, port)
        except TimeoutError as error:
            raise TransientError("Unreachable", f"Host {host} was not resolved within {_SECONDS:.0f} s.") from error
        except (OSError, UnicodeError) as error:
            raise TransientError("Unreachable", f"Host {host} cannot be resolved: check its spelling.") from error
        for spelling in found:
            name = "" if spelling == host else host
            if message := address_policy.deny_reason(spelling, name, self._allowed):
                raise AccessDenied("AddressForbidden", message)
        return found

    async def check_literal_address(self, host: str, port: int) -> None:
        """Check a host that a proxy connects to, if it can be resolved here."""
        try:
            await self.addresses_of(host, port)
        except TransientError:
            return


class PolicyResolver(AbstractResolver):
    """Resolver for aiohttp. Numeric addresses do not come here: they are checked with their URI."""

    def __init__(self, address_guard: AddressGuard) -> None:
        self._address_guard = address_guard

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await self._address_guard.addresses_of(host, port)
        return [_result(host, address, port) for address in found if family in {socket.AF_UNSPEC, _family(address)}]

    async def close(self) -> None: ...


def _result(host: str, address: str, port: int) -> ResolveResult:
    numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return {"hostname": host, "host": address, "port": port, "family": _family(address), "proto": 0, "flags": numeric}


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
