"""Which connections NetworkPolicies allow, by tables, and the ruleset that says the same to the kernel."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from skysail.kube.api.objects import Object
from skysail.local.network.policy import isolation, nft_ruleset
from skysail.local.network.policy.isolation import Isolation, Peer, decode_peers, encode_peers
from skysail.local.network.policy.network_policies import NetworkPolicy, Pod

DNS = "10.244.0.1"
WEB, CLIENT, OTHER, FAR = "10.244.0.3", "10.244.0.4", "10.244.0.5", "10.244.0.6"


def pod(name: str, address: str, namespace: str = "team", **labels: str) -> Pod:
    ports = [{"name": "http", "containerPort": 8000}, {"name": "dns", "containerPort": 5353, "protocol": "UDP"}]
    metadata = {"name": name, "namespace": namespace, "uid": f"{namespace}-{name}", "labels": labels}
    spec = {"containers": [{"ports": ports if name == "web" else []}]}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": {"podIP": address}}, Pod)


PODS = (
    pod("web", WEB, app="web"),
    pod("client", CLIENT, role="client"),
    pod("other", OTHER),
    pod("far", FAR, namespace="far", role="client"),
)
NAMESPACES = [
    msgspec.convert({"metadata": {"name": name, "labels": {"team": name}}}, Object) for name in ("team", "far")
]


def policy(selector: dict[str, Any], *types: str, **rules: Any) -> NetworkPolicy:
    spec = {"podSelector": selector, "policyTypes": list(types), **rules}
    return msgspec.convert({"metadata": {"name": "p", "namespace": "team"}, "spec": spec}, NetworkPolicy)


def built(*policies: NetworkPolicy) -> Isolation:
    return isolation.build(policies, PODS, NAMESPACES)


APP = {"matchLabels": {"app": "web"}}
ROLE = {"matchLabels": {"role": "client"}}
FAR_AWAY = {"matchLabels": {"team": "far"}}
ALL: dict[str, Any] = {}


def ingress(*rules: dict[str, Any]) -> NetworkPolicy:
    return policy(APP, "Ingress", ingress=list(rules))


def egress(*rules: dict[str, Any]) -> NetworkPolicy:
    return policy(ROLE, "Egress", egress=list(rules))


@pytest.mark.parametrize(
    ("policies", "allowed"),
    [
        ((), {CLIENT, OTHER, FAR}),
        ((ingress(),), set()),
        ((policy(ALL, "Ingress"),), set()),
        ((ingress({}),), {CLIENT, OTHER, FAR}),
        ((ingress({"from": [{"podSelector": ROLE}]}),), {CLIENT}),
        ((ingress({"from": [{"podSelector": ALL}]}),), {CLIENT, OTHER}),
        ((ingress({"from": [{"namespaceSelector": FAR_AWAY}]}),), {FAR}),
        ((ingress({"from": [{"namespaceSelector": ALL, "podSelector": ROLE}]}),), {CLIENT, FAR}),
        ((ingress({"from": [{"namespaceSelector": FAR_AWAY}, {"podSelector": ROLE}]}),), {CLIENT, FAR}),
        ((ingress({"from": [{"ipBlock": {"cidr": "10.244.0.4/31"}}]}),), {CLIENT, OTHER}),
        ((ingress({"from": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.244.0.5/32"]}}]}),), {CLIENT, FAR}),
        ((ingress({"from": [{"ipBlock": {"cidr": "2001:db8::/32"}}]}),), set()),
        ((ingress({"from": [{"podSelector": ROLE}], "ports": [{"port": 8000}]}),), {CLIENT}),
        ((ingress({"from": [{"podSelector": ROLE}], "ports": [{"port": "http"}]}),), {CLIENT}),
        ((ingress({"ports": [{"port": "absent"}]}),), set()),
        ((ingress({"ports": [{"port": 8000, "protocol": "UDP"}]}),), set()),
        ((ingress({"ports": [{"port": 7000, "endPort": 9000}]}),), {CLIENT, OTHER, FAR}),
        ((ingress({"ports": [{"protocol": "TCP"}]}),), {CLIENT, OTHER, FAR}),
        (
            (ingress({"from": [{"podSelector": ROLE}]}), ingress({"from": [{"namespaceSelector": FAR_AWAY}]})),
            {CLIENT, FAR},
        ),
        ((policy(APP, "Egress"),), {CLIENT, OTHER, FAR}),
        # Without policyTypes a policy is about ingress, and about egress if it has a rule for it.
        ((policy(APP),), set()),
        ((policy(ROLE, egress=[{"to": [{"podSelector": {"matchLabels": {"app": "x"}}}]}]),), {OTHER, FAR}),
        # Egress of the client: by pod, named port of the destination, CIDR.
        ((egress(),), {OTHER, FAR}),
        ((egress({"to": [{"podSelector": APP}]}),), {CLIENT, OTHER, FAR}),
        ((egress({"to": [{"podSelector": APP}], "ports": [{"port": "http"}]}),), {CLIENT, OTHER, FAR}),
        ((egress({"to": [{"podSelector": APP}], "ports": [{"port": 81}]}),), {OTHER, FAR}),
        ((egress({"to": [{"ipBlock": {"cidr": f"{WEB}/32"}}]}),), {CLIENT, OTHER, FAR}),
    ],
)
def test_who_reaches_the_server(policies, allowed):
    found = built(*policies)
    assert {source for source in (CLIENT, OTHER, FAR) if found.allows(source, WEB, 8000)} == allowed


@pytest.mark.parametrize(
    ("rule", "is_allowed"),
    [
        (None, False),
        ({}, True),
        ({"to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}]}, True),
        ({"to": [{"namespaceSelector": ALL, "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}]}, True),
        ({"to": [{"namespaceSelector": ALL}], "ports": [{"port": 53, "protocol": "UDP"}]}, True),
        ({"to": [{"namespaceSelector": ALL}], "ports": [{"port": 80}]}, False),
        ({"to": [{"podSelector": ALL}]}, False),
        ({"to": [{"ipBlock": {"cidr": f"{DNS}/32"}}]}, True),
    ],
)
def test_the_name_server_is_the_usual_one_for_policies(rule, is_allowed):
    found = built(egress(*([] if rule is None else [rule])))
    assert found.allows(CLIENT, DNS, 53, "UDP") is is_allowed
    to_dns_only = rule is not None and "to" in rule and "ipBlock" not in str(rule)
    assert not (to_dns_only and found.allows(CLIENT, DNS, 6443))


def test_pods_without_an_address_of_their_own_are_not_isolated_and_known_addresses_count_before_the_status():
    new = msgspec.structs.replace(pod("new", "", app="web"))
    found = isolation.build([ingress()], [new], NAMESPACES, {"team-new": "10.244.0.9"})
    assert list(found.pods) == ["10.244.0.9"]
    assert not isolation.build([ingress()], [new], NAMESPACES).pods


def test_destinations_outside_are_those_of_the_port():
    block = {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}
    found = built(egress({"to": [{"ipBlock": block}], "ports": [{"port": 443}]}))
    assert found.destinations(CLIENT, 443) == (Peer("0.0.0.0/0", ("10.0.0.0/8",)),)
    assert found.destinations(CLIENT, 80) == ()
    assert found.destinations(OTHER, 80) is None
    assert built(egress({})).destinations(CLIENT, 80) is None


def test_peers_survive_their_header():
    peers = (Peer("0.0.0.0/0", ("10.0.0.0/8", "192.168.0.0/16")), Peer("192.0.2.0/24"))
    assert decode_peers(encode_peers(peers)) == peers
    with pytest.raises(ValueError, match="evil"):
        decode_peers("evil")


def test_without_isolated_pods_the_table_is_only_removed():
    assert nft_ruleset.render(built(), proxy_port=3128, outer_port=3129).splitlines() == [
        "table bridge skysail_network_policies",
        "delete table bridge skysail_network_policies",
    ]


def test_the_ruleset_has_a_chain_for_each_isolated_pod():
    rule = {"from": [{"podSelector": ROLE}, {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]}
    lines = nft_ruleset.render(
        built(ingress({**rule, "ports": [{"port": "http"}]})), proxy_port=3128, outer_port=3129
    ).splitlines()
    start = lines.index(f"chain ingress_{WEB.replace('.', '_')} {{")
    assert lines[start + 1 : start + 5] == [
        f"ip saddr {{ {CLIENT} }} tcp dport 8000 return",
        "ip saddr 10.0.0.0/8 ip saddr != 10.1.0.0/16 tcp dport 8000 return",
        "drop",
        "}",
    ]
    assert f"ip daddr vmap {{ {WEB} : jump ingress_{WEB.replace('.', '_')} }}" in lines


def test_the_outer_part_of_the_egress_proxy_is_closed_before_the_rules_of_the_pods():
    lines = nft_ruleset.render(built(egress({})), proxy_port=3128, outer_port=3129).splitlines()
    start = lines.index("chain input {")
    closed = lines.index(f"ip saddr {{ {CLIENT} }} ip daddr {DNS} tcp dport 3129 drop")
    dispatch = lines.index(f"ip saddr vmap {{ {CLIENT} : jump egress_{CLIENT.replace('.', '_')} }}", start)
    assert start < closed < dispatch


def test_each_udp_packet_renews_the_time_for_its_replies():
    lines = nft_ruleset.render(built(ingress({})), proxy_port=3128, outer_port=3129).splitlines()
    assert "meta l4proto udp update @replies { ip saddr . udp sport . ip daddr . udp dport }" in lines
    assert not any(" add @replies" in line for line in lines)
