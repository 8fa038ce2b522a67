"""Egress policy: addresses that a model may not come from, so that no download reads cluster-internal data. Pure.

The same rules check a URI when it is written (`validate_uri`), and every numeric address right before a connection is
made (`deny_reason`), because a name may resolve differently by then. `allowed` permits blocked addresses:

- a network (`10.1.0.0/16`) permits the private addresses in it;
- a host (`minio.storage.svc`, `*.models.svc`) permits the name and the private addresses behind it;
- a cloud metadata address needs an entry of its own: a network that contains it is not enough.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import SplitResult, urlsplit

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

SCHEMES = ("http", "https", "s3", "gs", "hf", "pvc", "oci", "file")
_WITH_HOST = ("http", "https", "oci")
# Cloud metadata addresses outside the link-local range.
CREDENTIAL_ADDRESSES = tuple(
    map(ip_address, ("fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"))
)
_TRANSLATED = IPv6Network("64:ff9b::/96")
_GIVEN_OUT = IPv6Network("2000::/3")
# Reserved by IANA: private networks, protocols, benchmarks, examples in documents, Teredo. A list of our own, because
# the one of the standard library changes with each release of Python.
_RESERVED: tuple[Network, ...] = (
    *map(IPv4Network, ("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12")),
    *map(IPv4Network, ("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15")),
    *map(IPv4Network, ("198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4")),
    *map(IPv6Network, ("2001::/23", "2001:db8::/32", "3fff::/20")),
)
_COMPATIBLE = IPv6Network("::/96")
_ISATAP = 0x5EFE
_LOWEST_32_BITS = 0xFFFFFFFF
# IPv4 0.0.0.0/8 is "this host": Linux may treat all of it as loopback.
_THIS_HOST = IPv4Network("0.0.0.0/8")
_EVERYBODY = IPv4Address("255.255.255.255")
_HOME_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")
_CREDENTIAL_NAMES = ("metadata", "metadata.google.internal", "instance-data", "instance-data.ec2.internal")
# Suffixes of names inside a cluster, company or home. A name without a dot is internal, too, as it is resolved as a
# Service first.
_INNER_SUFFIXES = (".svc", ".local", ".internal", ".localdomain", ".home.arpa", ".in-addr.arpa", ".ip6.arpa")
_HOST_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]{0,62})?(\.[a-z0-9_]([a-z0-9_-]{0,62})?)*")
_NUMERIC_END = re.compile(r"(.*\.)?(\d+|0x[0-9a-f]*)")
# URL parsers disagree about these characters: the policy could check one host while the client connects to another.
_AMBIGUOUS = re.compile(r"[\x00-\x20\x7f\\#]|[^\x00-\x7f]")


def validate_uri(uri: str, allowed: Sequence[str]) -> str | None:
    """Return why nothing may be downloaded from this URI, as a sentence with the fix, or None if it may."""
    if _AMBIGUOUS.search(uri):
        return "The address has a backslash, a # or a character that is not visible ASCII: percent-encode it (%23)."
    try:
        parts = urlsplit(uri)
        host, _port = parts.hostname or "", parts.port
    except ValueError:  # whose text may hold a password
        return "The address cannot be parsed: check the host, and that the port is a number."
    if uri.partition("://")[0] not in SCHEMES:
        return f"The address has no supported scheme: use {', '.join(f'{scheme}://' for scheme in SCHEMES)}."
    if "@" in parts.netloc:
        return "The address has a user name or password: put them into the Secret of `credentialsSecret`."
    if parts.scheme in _WITH_HOST:
        return _about_host(host, parts, allowed)
    return _about_place(parts)


def _about_place(parts: SplitResult) -> str | None:
    """Check addresses without a host: a bucket, a repository, a PVC, or a path in the image."""
    if parts.scheme == "file" and parts.netloc:
        return "A file:// address is a path inside the runtime's image: write file:///path, with three slashes."
    if parts.scheme != "file" and not parts.netloc:
        return f"The address names nothing after {parts.scheme}://: write {parts.scheme}://name/path."
    if ".." in parts.path.split("/"):
        return "The path of the address has `..` in it: write the path without it."
    return None


def _about_host(host: str, parts: SplitResult, allowed: Sequence[str]) -> str | None:
    name = host.removesuffix(".")
    if not name:
        return f"The address names no host after {parts.scheme}://: write {parts.scheme}://host/path."
    if "[" in parts.netloc or _NUMERIC_END.fullmatch(name):
        return _about_numbers(name, allowed)
    if not _HOST_NAME.fullmatch(name):
        return f"{host} is not a host name: use letters, digits, dashes and dots."
    return _about_name(name, allowed)


def _about_numbers(host: str, allowed: Sequence[str]) -> str | None:
    try:
        address = ip_address(host)
    except ValueError:
        return f"{host} is an unusual spelling of an IP address: write four decimal numbers, or a host name."
    if isinstance(address, IPv6Address) and address.scope_id:
        return f"{host} belongs to one network interface: use an address that is valid everywhere."
    return deny_reason(host, "", allowed)


def _about_name(name: str, allowed: Sequence[str]) -> str | None:
    if name in _HOME_NAMES or name.endswith(".localhost"):
        return f"{name} is the pod itself, which has no model: use the host that has the model."
    if name in _CREDENTIAL_NAMES:
        return f"{name} is a cloud metadata server, which holds credentials: use the host that has the model."
    if is_allowed_name(name, allowed):
        return None
    if "." not in name or name == "kubernetes.default" or name.endswith(_INNER_SUFFIXES):
        return (
            f"{name} is a name inside the cluster or a private network: use a public host, or add `{name}` to the"
            " setting `allowed_model_hosts`."
        )
    return None


def deny_reason(spelling: str, host: str, allowed: Sequence[str]) -> str | None:
    """Return why no connection may be made to this numeric address of `host` ("" if none), or None if it may."""
    outer = ip_address(spelling)
    who = f"{host} ({spelling})" if host else spelling
    reasons = (_closed(who, address, host, allowed) for address in meanings(outer))
    return next(filter(None, reasons), None)


def is_allowed_name(host: str, allowed: Sequence[str]) -> bool:
    name = host.removesuffix(".").lower()
    return any(fnmatchcase(name, pattern.lower()) for pattern in allowed if _network(pattern) is None)


def _closed(who: str, address: Address, host: str, allowed: Sequence[str]) -> str | None:
    opened = [network for network in map(_network, allowed) if network is not None and address in network]
    if any(network.num_addresses == 1 for network in opened):
        return None
    is_home = address.is_loopback or address.is_unspecified or address in _THIS_HOST
    is_private = not is_public(address) and not (host and is_allowed_name(host, allowed))
    closed = (
        (
            address.is_link_local or address in CREDENTIAL_ADDRESSES,
            f"{who} is a link-local or cloud metadata address, which may hold credentials: use the host of the model.",
        ),
        (
            address.is_multicast or address == _EVERYBODY,
            f"{who} is a multicast or broadcast address: use the host that has the model.",
        ),
        (is_home and not opened, f"{who} is the pod itself, which has no model: use the host that has the model."),
        (
            is_private and not opened,
            f"{who} is a private address: use a public host, or add it to the setting `allowed_model_hosts`.",
        ),
    )
    return next((message for is_so, message in closed if is_so), None)


def is_public(address: Address) -> bool:
    """Return whether the Internet may have a machine at this address.

    An address that a gateway translates counts as public here: check the embedded address, too (`meanings`).
    """
    if isinstance(address, IPv6Address) and address in _TRANSLATED:
        return True
    is_given_out = isinstance(address, IPv4Address) or address in _GIVEN_OUT
    return is_given_out and not any(address in network for network in _RESERVED)


def meanings(address: Address) -> list[Address]:
    """Return the address, and the IPv4 addresses that a gateway or tunnel would translate it to."""
    if isinstance(address, IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:  # the kernel connects to the IPv4 address itself
        return [address.ipv4_mapped]
    return [address, *_wrapped_in(address)]


def _wrapped_in(address: IPv6Address) -> list[IPv4Address]:
    lowest = IPv4Address(int(address) & _LOWEST_32_BITS)
    found = [address.sixtofour] if address.sixtofour is not None else []
    if address.teredo is not None:
        found.extend(address.teredo)
    if address in _TRANSLATED or (address in _COMPATIBLE and int(address) > 1):
        found.append(lowest)
    if (int(address) >> 32) & 0xFCFFFFFF == _ISATAP:
        found.append(lowest)
    return found


def _network(pattern: str) -> Network | None:
    """Return the network, or None if the pattern is a host name."""
    try:
        return ip_network(pattern, strict=False)
    except ValueError:
        return None
