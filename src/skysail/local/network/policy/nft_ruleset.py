"""Ruleset for `nft` that enforces the isolation of pods on the bridge of the local cluster. Pure.

Packets between pods are only forwarded by the bridge, where many kernels track no connections. So the rules judge the
first packet of a TCP connection, and remember UDP packets for their replies in a set with a timeout. Connections to
Services are judged by the service proxy, and connections to the outside by the egress proxy: they know both ends.
Policies name IPv4 addresses only, so an isolated pod has no other protocol than ARP beside IPv4, in its directions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from skysail.local.addresses import CLUSTER_IP, SERVICE_RANGE
from skysail.local.network import interfaces
from skysail.local.network.policy.isolation import Allowed, Isolation, Peer, PodIsolation, PortRange

TABLE = "skysail_network_policies"
_TRIAL_TABLE = "skysail_trial"
_TRIAL_ADDRESS = "192.0.2.2"
_REPLY_SECONDS = 60
_MAX_REPLIES = 65536


def render(isolation: Isolation, *, proxy_port: int, outer_port: int) -> str:
    """Return a script that replaces the whole table in one transaction. The table is empty if no pod is isolated.

    `proxy_port`: port of the egress proxy, which judges each request itself. `outer_port`: port of its outer part,
    which does not know the pod that asks. So it is closed to isolated pods, whatever their policies allow.
    """
    # To declare a table makes its deletion valid if it does not exist yet.
    head = f"table bridge {TABLE}\ndelete table bridge {TABLE}\n"
    return head + _whole(TABLE, isolation, proxy_port, outer_port) if isolation.pods else head


def render_trial() -> str:
    """Return a script that makes and removes a table with every kind of rule: it changes nothing where it is valid."""
    port = (PortRange("TCP", 1, 2), PortRange("UDP", 1, 1), PortRange("SCTP", 1, 1))
    peers = (Peer(f"{_TRIAL_ADDRESS}/32"), Peer("192.0.2.0/24", ("192.0.2.1/32",)))
    rules = (Allowed(peers, port), Allowed(peers[:1]))
    isolation = Isolation({_TRIAL_ADDRESS: PodIsolation(ingress=rules, egress=rules)})
    return _whole(_TRIAL_TABLE, isolation, 1, 2) + f"delete table bridge {_TRIAL_TABLE}\n"


def _whole(name: str, isolation: Isolation, proxy_port: int, outer_port: int) -> str:
    return "\n".join((f"table bridge {name} {{", *_table(isolation, proxy_port, outer_port), "}", ""))


def _table(isolation: Isolation, proxy_port: int, outer_port: int) -> Iterator[str]:
    pods = sorted(isolation.pods.items())
    egress = [(address, rules.egress) for address, rules in pods if rules.egress is not None]
    ingress = [(address, rules.ingress) for address, rules in pods if rules.ingress is not None]
    yield "set replies {"
    yield "type ipv4_addr . inet_service . ipv4_addr . inet_service"
    yield f"flags dynamic, timeout; timeout {_REPLY_SECONDS}s; size {_MAX_REPLIES};"
    yield "}"
    for address, rules in egress:
        yield from _chain("egress", address, rules, "daddr")
    for address, rules in ingress:
        yield from _chain("ingress", address, rules, "saddr")
    yield "chain established {"
    yield "ether type arp accept"
    yield from _ipv4_only("iifname", egress)
    yield from _ipv4_only("oifname", ingress)
    yield "ether type != ip accept"
    yield "tcp flags & (syn | ack) != syn accept"
    yield "ip daddr . udp dport . ip saddr . udp sport @replies accept"
    yield "icmp type != echo-request accept"
    yield "}"
    yield "chain forward {"
    yield "type filter hook forward priority 0; policy accept;"
    yield "jump established"
    yield f"ip daddr {SERVICE_RANGE} accept"
    yield f"ip saddr {SERVICE_RANGE} accept"
    yield from _dispatch("egress", "saddr", egress)
    yield from _dispatch("ingress", "daddr", ingress)
    yield "meta l4proto udp update @replies { ip saddr . udp sport . ip daddr . udp dport }"
    yield "}"
    yield "chain input {"
    yield "type filter hook input priority 0; policy accept;"
    yield "jump established"
    yield f"ip daddr {CLUSTER_IP} tcp dport {proxy_port} accept"
    if egress:
        sources = ", ".join(address for address, _ in egress)
        yield f"ip saddr {{ {sources} }} ip daddr {CLUSTER_IP} tcp dport {outer_port} drop"
    yield from _dispatch("egress", "saddr", egress)
    yield "}"


def _ipv4_only(field: str, rows: list[tuple[str, tuple[Allowed, ...]]]) -> Iterator[str]:
    """Yield the rule by links, not by hardware addresses: packets to a group have another one."""
    if rows:
        links = ", ".join(f'"{interfaces.port(interfaces.pod_namespace(address))}"' for address, _ in rows)
        yield f"ether type != ip {field} {{ {links} }} drop"


def _dispatch(direction: str, field: str, rows: list[tuple[str, tuple[Allowed, ...]]]) -> Iterator[str]:
    if rows:
        verdicts = ", ".join(f"{address} : jump {_name(direction, address)}" for address, _ in rows)
        yield f"ip {field} vmap {{ {verdicts} }}"


def _chain(direction: str, address: str, rules: Iterable[Allowed], field: str) -> Iterator[str]:
    """Yield the chain of a pod: it returns for allowed packets, and drops all others."""
    yield f"chain {_name(direction, address)} {{"
    for rule in rules:
        yield from _rule(rule, field)
    yield "drop"
    yield "}"


def _rule(rule: Allowed, field: str) -> Iterator[str]:
    ports = [""] if rule.ports is None else list(map(_port, rule.ports))
    for peer in [""] if rule.peers is None else _peers(rule.peers, field):
        for port in ports:
            yield " ".join(word for word in (peer, port, "return") if word)


def _peers(peers: tuple[Peer, ...], field: str) -> Iterator[str]:
    """Yield the matches of the peers: one for all plain networks, one for each network with exclusions."""
    if plain := [peer.network for peer in peers if not peer.excluded]:
        # Networks of one set must not overlap, so each has a rule of its own unless all are single addresses.
        if all(network.endswith("/32") for network in plain):
            yield f"ip {field} {{ {', '.join(network.removesuffix('/32') for network in plain)} }}"
        else:
            yield from (_network(field, network) for network in plain)
    for peer in peers:
        if peer.excluded:
            excluded = " ".join(f"ip {field} != {each}" for each in peer.excluded)
            yield f"{_network(field, peer.network)} {excluded}".strip()


def _network(field: str, network: str) -> str:
    # A network of all addresses is no valid prefix match.
    return "" if network == "0.0.0.0/0" else f"ip {field} {network}"


def _port(port: PortRange) -> str:
    return (
        f"{port.protocol.lower()} dport {port.first}-{port.last}"
        if port.first < port.last
        else (f"{port.protocol.lower()} dport {port.first}")
    )


def _name(direction: str, address: str) -> str:
    return f"{direction}_{address.replace('.', '_')}"
