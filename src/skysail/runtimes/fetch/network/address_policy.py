"""Which addresses a model may not come from, so that no download reads what only the cluster may see. Pure.

Asked twice by one set of rules: of a URI when it is written (`objection`), and of every numeric address right before a
connection is made to it (`forbidden`), because a name can mean something else by then. `allowed` opens what is closed:

- a network (`10.1.0.0/16`) opens the private addresses in it;
- a host (`minio.storage.svc`, `*.models.svc`) opens the name, and the private addresses behind it;
- where clouds keep credentials is opened by the single address only, because nobody who names a network means it.
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
# Where clouds keep credentials although it is not link-local.
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
# The first network of the fourth version is "this host": Linux takes all of it for loopback where it takes any of it.
_THIS_HOST = IPv4Network("0.0.0.0/8")
_EVERYBODY = IPv4Address("255.255.255.255")
_HOME_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")
_CREDENTIAL_NAMES = ("metadata", "metadata.google.internal", "instance-data", "instance-data.ec2.internal")
# Names that only a cluster, a company or a home knows. A single word is one too: it is looked up as a Service first.
_INNER_SUFFIXES = (".svc", ".local", ".internal", ".localdomain", ".home.arpa", ".in-addr.arpa", ".ip6.arpa")
_HOST_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]{0,62})?(\.[a-z0-9_]([a-z0-9_-]{0,62})?)*")
_NUMERIC_END = re.compile(r"(.*\.)?(\d+|0x[0-9a-f]*)")
# Programs disagree about what these mean in a URI: one would judge a host, and the other connect to a different one.
_AMBIGUOUS = re.compile(r"[\x00-\x20\x7f\\#]|[^\x00-\x7f]")


def objection(uri: str, allowed: Sequence[str]) -> str | None:
    """Why nothing may be fetched from this URI, as a sentence with the fix in it; None where it may."""
    if _AMBIGUOUS.search(uri):
        return "The address of a model has only visible ASCII characters, no backslash and no #: encode others (%23)."
    try:
        parts = urlsplit(uri)
        host, _port = parts.hostname or "", parts.port
    except ValueError:  # whose text may hold a password
        return "The address of the model cannot be read: check the host, and that the port is a number."
    if uri.partition("://")[0] not in SCHEMES:
        return f"The address of a model begins with one of {', '.join(f'{scheme}://' for scheme in SCHEMES)}."
    if "@" in parts.netloc:
        return "The address of a model holds no user name or password: put them into the Secret of `credentialsSecret`."
    if parts.scheme in _WITH_HOST:
        return _about_host(host, parts, allowed)
    return _about_place(parts)


def _about_place(parts: SplitResult) -> str | None:
    """What is not told by a host: a bucket, a repository, a claim, a path in the image."""
    if parts.scheme == "file" and parts.netloc:
        return "file:// names a path inside the runtime's image, with three slashes: file:///path."
    if parts.scheme != "file" and not parts.netloc:
        return f"{parts.scheme}:// is followed by a name: {parts.scheme}://name/path."
    if ".." in parts.path.split("/"):
        return "The path of a model has no `..` in it: write the path that is meant."
    return None


def _about_host(host: str, parts: SplitResult, allowed: Sequence[str]) -> str | None:
    name = host.removesuffix(".")
    if not name:
        return f"{parts.scheme}:// is followed by a host: {parts.scheme}://host/path."
    if "[" in parts.netloc or _NUMERIC_END.fullmatch(name):
        return _about_numbers(name, allowed)
    if not _HOST_NAME.fullmatch(name):
        return f"{host} is no name of a host: write it with letters, digits, dashes and dots."
    return _about_name(name, allowed)


def _about_numbers(host: str, allowed: Sequence[str]) -> str | None:
    try:
        address = ip_address(host)
    except ValueError:
        return f"{host} is an unusual way to write an address: write four decimal numbers, or the host's name."
    if isinstance(address, IPv6Address) and address.scope_id:
        return f"{host} is meant for one network card only: use an address that is valid everywhere."
    return forbidden(host, "", allowed)


def _about_name(name: str, allowed: Sequence[str]) -> str | None:
    if name in _HOME_NAMES or name.endswith(".localhost"):
        return f"{name} is the pod itself, and no model is there: use the host that has it."
    if name in _CREDENTIAL_NAMES:
        return f"Clouds keep credentials at {name}: no model is fetched from there."
    if is_allowed_name(name, allowed):
        return None
    if "." not in name or name == "kubernetes.default" or name.endswith(_INNER_SUFFIXES):
        return (
            f"{name} is a name inside a private network or the cluster: models come from there only where the setting"
            f" `model_sources` allows it, such as by `{name}`."
        )
    return None


def forbidden(spelling: str, host: str, allowed: Sequence[str]) -> str | None:
    """Why no connection may be made to this numeric address, which `host` stands for ("" where none does)."""
    outer = ip_address(spelling)
    reasons = (_closed(address, host, allowed) for address in meanings(outer))
    why = next(filter(None, reasons), None)
    if why is None:
        return None
    where = f"{host} is at {spelling}, which" if host else spelling
    return f"{where} {why}"


def is_allowed_name(host: str, allowed: Sequence[str]) -> bool:
    name = host.removesuffix(".").lower()
    return any(fnmatchcase(name, pattern.lower()) for pattern in allowed if _network(pattern) is None)


def _closed(address: Address, host: str, allowed: Sequence[str]) -> str | None:
    opened = [network for network in map(_network, allowed) if network is not None and address in network]
    if any(network.num_addresses == 1 for network in opened):
        return None
    is_home = address.is_loopback or address.is_unspecified or address in _THIS_HOST
    is_private = not is_public(address) and not (host and is_allowed_name(host, allowed))
    closed = (
        (
            address.is_link_local or address in CREDENTIAL_ADDRESSES,
            "is where clouds keep credentials: no model comes from there.",
        ),
        (address.is_multicast or address == _EVERYBODY, "is no single machine: use the host that has the model."),
        (is_home and not opened, "is the pod itself, and no model is there: use the host that has it."),
        (
            is_private and not opened,
            "is a private address: models come from there only where the setting `model_sources` allows it.",
        ),
    )
    return next((why for is_so, why in closed if is_so), None)


def is_public(address: Address) -> bool:
    """Return whether the Internet may have a machine at this address.

    An address that a gateway translates counts as public here: judge the one that is embedded, too (`meanings`).
    """
    if isinstance(address, IPv6Address) and address in _TRANSLATED:
        return True
    is_given_out = isinstance(address, IPv4Address) or address in _GIVEN_OUT
    return is_given_out and not any(address in network for network in _RESERVED)


def meanings(address: Address) -> list[Address]:
    """Return the address, and those of the fourth version that a gateway or tunnel would make of it."""
    if isinstance(address, IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:  # not an address of its own: the kernel itself speaks the fourth version
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
    """None where it is a pattern of host names."""
    try:
        return ip_network(pattern, strict=False)
    except ValueError:
        return None
