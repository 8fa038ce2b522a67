"""DNS records of the cluster, computed from Services, EndpointSlices and the pods of this node. Pure.

Follows the Kubernetes DNS specification: Services, their ports (SRV), headless Services and their pods, and reverse
lookup (PTR).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from ipaddress import AddressValueError, IPv4Address, IPv4Network

import msgspec

from skysail.local.addresses import CLUSTER_IP, POD_RANGE, SERVICE_RANGE
from skysail.local.network.objects import EndpointSlice, Service, by_service

DOMAIN = "cluster.local"
_MAX_PART_LENGTH = 63
_REVERSE = ".in-addr.arpa"
_OWN_RANGES = tuple(IPv4Network(range_) for range_ in (POD_RANGE, SERVICE_RANGE))


class OwnPod(msgspec.Struct, frozen=True):
    """A pod of this node. Its name is known here before its EndpointSlice is written."""

    namespace: str
    hostname: str
    subdomain: str
    address: str


class Target(msgspec.Struct, frozen=True, order=True):
    """Target of an SRV record."""

    host: str
    port: int


class Zone(msgspec.Struct, frozen=True, kw_only=True):
    """All names at one moment, in lower case, without the final dot.

    `empty_nonterminals` are names that exist only because of names below them.
    """

    addresses: dict[str, tuple[str, ...]]
    targets: dict[str, tuple[Target, ...]]
    aliases: dict[str, str]
    pointers: dict[str, str]
    headless: frozenset[str]
    empty_nonterminals: frozenset[str]

    def has(self, name: str) -> bool:
        return any(
            name in names
            for names in (self.addresses, self.targets, self.aliases, self.pointers, self.empty_nonterminals)
        )

    def is_pending(self, name: str) -> bool:
        """Return whether this may be a pod that does not exist yet: an unknown name below a headless Service."""
        return name.partition(".")[2] in self.headless and not self.has(name)


def is_ours(name: str) -> bool:
    """Return whether only this server can know the name: it is of the cluster, or of an address in it."""
    if name == DOMAIN or name.endswith(f".{DOMAIN}"):
        return True
    address = _reversed(name)
    return address is not None and any(address in range_ for range_ in _OWN_RANGES)


def resolv_conf(namespace: str) -> str:
    """Return /etc/resolv.conf of a pod, as a kubelet writes it."""
    return f"search {' '.join(_search(namespace))}\nnameserver {CLUSTER_IP}\noptions ndots:5\n"


def resolve(zone: Zone, host: str, namespace: str) -> list[str]:
    """Return the cluster addresses of a host, as a pod of this namespace resolves it. The host may be an address."""
    host = host.rstrip(".").lower()
    if _is_own_address(host):
        return [host]
    for name in (*(f"{host}.{domain}" for domain in _search(namespace)), host):
        if found := zone.addresses.get(zone.aliases.get(name, name)):
            return list(found)
    return []


def _search(namespace: str) -> tuple[str, ...]:
    return f"{namespace}.svc.{DOMAIN}", f"svc.{DOMAIN}", DOMAIN


def _is_own_address(host: str) -> bool:
    try:
        return any(IPv4Address(host) in range_ for range_ in _OWN_RANGES)
    except AddressValueError:
        return False


def build(services: Iterable[Service], slices: Iterable[EndpointSlice], own_pods: Iterable[OwnPod] = ()) -> Zone:
    return _Builder(services, slices, own_pods).zone()


class _Builder:
    def __init__(
        self, services: Iterable[Service], slices: Iterable[EndpointSlice], own_pods: Iterable[OwnPod]
    ) -> None:
        self._slices = by_service(slices)
        self._own_pods: dict[str, list[OwnPod]] = defaultdict(list)
        for pod in own_pods:
            self._own_pods[_service_name(pod.subdomain, pod.namespace)].append(pod)
        self._addresses: dict[str, dict[str, None]] = defaultdict(dict)
        self._targets: dict[str, set[Target]] = defaultdict(set)
        self._aliases: dict[str, str] = {}
        self._pointers: dict[str, str] = {}
        self._headless: set[str] = set()
        self._folders: set[str] = {DOMAIN, f"svc.{DOMAIN}"}
        for service in services:
            self._add(service)

    def zone(self) -> Zone:
        return Zone(
            addresses={name: tuple(addresses) for name, addresses in self._addresses.items()},
            targets={name: tuple(sorted(targets)) for name, targets in self._targets.items()},
            aliases=self._aliases,
            pointers=self._pointers,
            headless=frozenset(self._headless),
            empty_nonterminals=frozenset(self._folders),
        )

    def _add(self, service: Service) -> None:
        name = _service_name(service.metadata.name, service.metadata.namespace)
        self._folders.add(name.partition(".")[2])
        if service.spec.type == "ExternalName":
            self._add_alias(name, service.spec.external_name.rstrip(".").lower())
        elif service.has_address:
            self._add_address(name, service.spec.cluster_ip)
            for port in service.spec.ports:
                self._add_target(name, port.name, port.protocol, Target(name, port.port))
        elif service.is_headless:
            self._headless.add(name)
            for slice_ in self._slices.get(service.metadata.key, ()):
                self._add_pods(name, slice_)
            if service.spec.publish_not_ready_addresses:
                for pod in self._own_pods.get(name, ()):
                    self._add_pod(name, pod.hostname, pod.address)

    def _add_alias(self, name: str, real: str) -> None:
        """Add an alias, unless a label is longer than DNS allows: the API server accepts any length."""
        if all(0 < len(part) <= _MAX_PART_LENGTH for part in real.split(".")):
            self._aliases[name] = real

    def _add_pods(self, name: str, slice_: EndpointSlice) -> None:
        for endpoint in slice_.endpoints or ():
            if not endpoint.is_ready:
                continue
            for address in endpoint.addresses[:1]:
                host = self._add_pod(name, endpoint.hostname or address.replace(".", "-"), address)
                for port in slice_.ports or ():
                    if port.port is not None:
                        self._add_target(name, port.name or "", port.protocol or "TCP", Target(host, port.port))

    def _add_pod(self, service: str, hostname: str, address: str) -> str:
        name = f"{hostname.lower()}.{service}"
        self._addresses[service][address] = None
        self._add_address(name, address)
        return name

    def _add_address(self, name: str, address: str) -> None:
        self._addresses[name][address] = None
        self._pointers.setdefault(IPv4Address(address).reverse_pointer, name)

    def _add_target(self, name: str, port: str, protocol: str, target: Target) -> None:
        if port:
            self._folders.add(f"_{protocol.lower()}.{name}")
            self._targets[f"_{port.lower()}._{protocol.lower()}.{name}"].add(target)


def _service_name(name: str, namespace: str) -> str:
    return f"{name}.{namespace}.svc.{DOMAIN}"


def _reversed(name: str) -> IPv4Address | None:
    if not name.endswith(_REVERSE):
        return None
    try:
        return IPv4Address(".".join(reversed(name.removesuffix(_REVERSE).split("."))))
    except AddressValueError:
        return None
