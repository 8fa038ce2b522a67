"""Isolation of pods: from NetworkPolicies to allowed connections of each address. Pure.

A pod that no policy selects is not isolated. A policy isolates its pods in the directions of its policyTypes; what any
rule of any policy allows is allowed. A connection needs both: egress of its source and ingress of its destination.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import AddressValueError, IPv4Address, IPv4Network, NetmaskValueError

import msgspec

from skysail.kube.api.fields import LabelSelector
from skysail.kube.api.label_selectors import matches
from skysail.kube.api.objects import Object
from skysail.local.addresses import CLUSTER_IP
from skysail.local.network.policy.network_policies import (
    ContainerPort,
    IpBlock,
    NetworkPolicy,
    Pod,
    PolicyPeer,
    PolicyPort,
    Protocol,
)

_MAX_PORT = 65535
_NAME = "kubernetes.io/metadata.name"
# The name server of the cluster is no pod here. Policies that select the usual one mean it.
_DNS_NAMESPACE = "kube-system"
_DNS_LABELS = {"k8s-app": "kube-dns"}


class PortRange(msgspec.Struct, frozen=True, order=True):
    protocol: Protocol
    first: int = 0
    last: int = _MAX_PORT


class Peer(msgspec.Struct, frozen=True, order=True):
    """A network without some parts of it, as text."""

    network: str
    excluded: tuple[str, ...] = ()

    def __contains__(self, address: IPv4Address) -> bool:
        return address in IPv4Network(self.network) and not any(address in IPv4Network(each) for each in self.excluded)


def encode_peers(peers: Iterable[Peer]) -> str:
    """Return the peers as the text of a header: `10.0.0.0/8!10.1.0.0/16,192.0.2.0/24`."""
    return ",".join("!".join((peer.network, *peer.excluded)) for peer in peers)


def decode_peers(text: str) -> tuple[Peer, ...]:
    """Raises ValueError for anything else than the text of `encode_peers`."""
    rows = [row.split("!") for row in text.split(",") if row]
    return tuple(
        Peer(str(IPv4Network(network)), tuple(str(IPv4Network(each)) for each in excluded))
        for network, *excluded in rows
    )


class Allowed(msgspec.Struct, frozen=True, order=True):
    """Peers and ports of a rule. `peers` or `ports` None: all of them, also protocols without ports."""

    peers: tuple[Peer, ...] | None = None
    ports: tuple[PortRange, ...] | None = None

    def includes(self, address: IPv4Address, protocol: Protocol, port: int) -> bool:
        return (self.peers is None or any(address in peer for peer in self.peers)) and (
            self.ports is None
            or any(each.protocol == protocol and each.first <= port <= each.last for each in self.ports)
        )


class PodIsolation(msgspec.Struct, frozen=True):
    """Allowed connections of one pod. None: not isolated in this direction."""

    ingress: tuple[Allowed, ...] | None = None
    egress: tuple[Allowed, ...] | None = None


class Isolation(msgspec.Struct, frozen=True):
    """Isolated pods by address. Other addresses are not isolated."""

    pods: Mapping[str, PodIsolation] = {}

    def allows(self, source: str, destination: str, port: int, protocol: Protocol = "TCP") -> bool:
        return self._egress(source, destination, protocol, port) and self._ingress(source, destination, protocol, port)

    def isolates_egress(self, source: str) -> bool:
        isolation = self.pods.get(source)
        return isolation is not None and isolation.egress is not None

    def destinations(self, source: str, port: int, protocol: Protocol = "TCP") -> tuple[Peer, ...] | None:
        """Return the networks that a pod may reach at this port; None if it may reach all."""
        isolation = self.pods.get(source)
        if isolation is None or isolation.egress is None:
            return None
        rules = [rule for rule in isolation.egress if _has_port(rule, protocol, port)]
        if any(rule.peers is None for rule in rules):
            return None
        return tuple(sorted({peer for rule in rules for peer in rule.peers or ()}))

    def _egress(self, source: str, destination: str, protocol: Protocol, port: int) -> bool:
        isolation = self.pods.get(source)
        rules = None if isolation is None else isolation.egress
        return rules is None or any(rule.includes(IPv4Address(destination), protocol, port) for rule in rules)

    def _ingress(self, source: str, destination: str, protocol: Protocol, port: int) -> bool:
        isolation = self.pods.get(destination)
        rules = None if isolation is None else isolation.ingress
        return rules is None or any(rule.includes(IPv4Address(source), protocol, port) for rule in rules)


class _PodAddress(msgspec.Struct, frozen=True):
    """A pod that has an address of its own."""

    address: str
    namespace: str
    labels: Mapping[str, str]
    ports: tuple[ContainerPort, ...] = ()


def build(
    policies: Iterable[NetworkPolicy],
    pods: Iterable[Pod],
    namespaces: Iterable[Object],
    addresses: Mapping[str, str] | None = None,
) -> Isolation:
    """Return the isolation of all pods. `addresses`: by UID, of pods whose status may not have it yet."""
    known = [found for pod in pods if (found := _address(pod, addresses or {})) is not None]
    labels = {namespace.metadata.name: namespace.metadata.labels or {} for namespace in namespaces}
    builder = _Builder(known, labels)
    isolated: dict[str, PodIsolation] = {}
    for policy in sorted(policies, key=lambda each: each.metadata.key):
        for pod in builder.selected(policy):
            old = isolated.get(pod.address, PodIsolation())
            isolated[pod.address] = PodIsolation(
                ingress=_added(old.ingress, builder.ingress(policy, pod) if _isolates_ingress(policy) else None),
                egress=_added(old.egress, builder.egress(policy) if _isolates_egress(policy) else None),
            )
    return Isolation(isolated)


class _Builder:
    def __init__(self, pods: list[_PodAddress], namespaces: Mapping[str, Mapping[str, str]]) -> None:
        self._pods = pods
        self._namespaces = namespaces

    def selected(self, policy: NetworkPolicy) -> list[_PodAddress]:
        return [
            pod
            for pod in self._pods
            if pod.namespace == policy.metadata.namespace and matches(policy.spec.pod_selector, pod.labels)
        ]

    def ingress(self, policy: NetworkPolicy, pod: _PodAddress) -> Iterator[Allowed]:
        """Yield the rules for one selected pod. A named port is a port of that pod."""
        for rule in policy.spec.ingress:
            ports = _ports(rule.ports, pod)
            if ports is None or ports:
                yield Allowed(self._peers(policy, rule.from_), ports)

    def egress(self, policy: NetworkPolicy) -> Iterator[Allowed]:
        """Yield the rules for all selected pods. A named port is a port of the pod at the other end."""
        namespace = policy.metadata.namespace
        for rule in policy.spec.egress:
            numbered = tuple(port for port in rule.ports if not isinstance(port.port, str))
            if numbered or not rule.ports:
                yield Allowed(self._peers(policy, rule.to), _ports(numbered, None))
                yield from self._dns(namespace, rule.to, _ports(numbered, None))
            if named := tuple(port for port in rule.ports if isinstance(port.port, str)):
                yield from self._named(namespace, rule.to, named)

    def _named(self, namespace: str, peers: tuple[PolicyPeer, ...], named: tuple[PolicyPort, ...]) -> Iterator[Allowed]:
        for pod in self._pods:
            if peers and not any(self._is_peer(namespace, peer, pod) for peer in peers):
                continue
            if ports := _ports(named, pod):
                yield Allowed((Peer(f"{pod.address}/32"),), ports)

    def _dns(
        self, namespace: str, peers: tuple[PolicyPeer, ...], ports: tuple[PortRange, ...] | None
    ) -> Iterator[Allowed]:
        """Yield the name server for a rule that would select the pods of the usual one."""
        server = _PodAddress(CLUSTER_IP, _DNS_NAMESPACE, _DNS_LABELS)
        questions: tuple[PortRange, ...] = (PortRange("TCP", 53, 53), PortRange("UDP", 53, 53))
        if ports is not None:
            questions = tuple(
                each
                for each in questions
                if any(port.protocol == each.protocol and port.first <= each.first <= port.last for port in ports)
            )
        if questions and any(self._is_peer(namespace, peer, server) for peer in peers):
            yield Allowed((Peer(f"{CLUSTER_IP}/32"),), questions)

    def _peers(self, policy: NetworkPolicy, peers: tuple[PolicyPeer, ...]) -> tuple[Peer, ...] | None:
        if not peers:
            return None
        blocks = [_block(peer.ip_block) for peer in peers if peer.ip_block is not None]
        pods = [
            Peer(f"{pod.address}/32")
            for pod in self._pods
            if any(self._is_peer(policy.metadata.namespace, peer, pod) for peer in peers)
        ]
        return tuple(sorted({*(block for block in blocks if block is not None), *pods}))

    def _is_peer(self, namespace: str, peer: PolicyPeer, pod: _PodAddress) -> bool:
        if peer.ip_block is not None:
            return False
        in_namespace = (
            pod.namespace == namespace
            if peer.namespace_selector is None
            else matches(peer.namespace_selector, self._labels(pod.namespace))
        )
        return in_namespace and matches(peer.pod_selector or LabelSelector(), pod.labels)

    def _labels(self, namespace: str) -> Mapping[str, str]:
        return {_NAME: namespace, **self._namespaces.get(namespace, {})}


def _isolates_ingress(policy: NetworkPolicy) -> bool:
    """Return whether the policy is about ingress. Without policyTypes every policy is."""
    return not policy.spec.policy_types or "Ingress" in policy.spec.policy_types


def _isolates_egress(policy: NetworkPolicy) -> bool:
    types = policy.spec.policy_types
    return "Egress" in types or (not types and bool(policy.spec.egress))


def _added(old: tuple[Allowed, ...] | None, more: Iterable[Allowed] | None) -> tuple[Allowed, ...] | None:
    if more is None:
        return old
    return tuple(dict.fromkeys((*(old or ()), *more)))


def _address(pod: Pod, addresses: Mapping[str, str]) -> _PodAddress | None:
    """Return the pod with its address. None for pods that share the node's address, and for finished ones."""
    address = addresses.get(pod.metadata.uid) or pod.status.pod_ip
    if not address or ":" in address or pod.spec.host_network or pod.status.phase in {"Succeeded", "Failed"}:
        return None
    ports = tuple(port for each in (*pod.spec.init_containers, *pod.spec.containers) for port in each.ports)
    return _PodAddress(address, pod.metadata.namespace, pod.metadata.labels or {}, ports)


def _ports(ports: tuple[PolicyPort, ...], pod: _PodAddress | None) -> tuple[PortRange, ...] | None:
    """Return the ports of a rule, None for all. A name that no container has allows nothing."""
    if not ports:
        return None
    return tuple(sorted({found for port in ports for found in _ranges(port, pod)}))


def _ranges(port: PolicyPort, pod: _PodAddress | None) -> Iterator[PortRange]:
    if port.port is None:
        yield PortRange(port.protocol)
    elif isinstance(port.port, int):
        yield PortRange(port.protocol, port.port, port.end_port or port.port)
    elif pod is not None:
        for each in pod.ports:
            if (each.name, each.protocol) == (port.port, port.protocol):
                yield PortRange(port.protocol, each.container_port, each.container_port)


def _block(block: IpBlock) -> Peer | None:
    """Return the network, or None for IPv6, which pods do not have here."""
    try:
        network = IPv4Network(block.cidr, strict=False)
        excluded = tuple(str(IPv4Network(each, strict=False)) for each in block.except_)
    except (AddressValueError, NetmaskValueError, ValueError):
        return None
    return Peer(str(network), excluded)


def _has_port(rule: Allowed, protocol: Protocol, port: int) -> bool:
    return rule.ports is None or any(
        each.protocol == protocol and each.first <= port <= each.last for each in rule.ports
    )
