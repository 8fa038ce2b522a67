"""Connections of isolated pods through the two proxies, which the kernel cannot judge by addresses."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, cast

import pytest

from skysail.local.addresses import CLUSTER_IP
from skysail.local.network import egress_proxy, http_proxy
from skysail.local.network.egress_policy import EgressPolicy
from skysail.local.network.http_proxy import ProxyError, ProxyRequest
from skysail.local.network.network import Network
from skysail.local.network.policy.isolation import Allowed, Isolation, Peer, PodIsolation, PortRange
from skysail.local.network.service_endpoints import ServiceEndpoint
from skysail.local.network.service_proxy import _Port

if TYPE_CHECKING:
    from skysail.kube.client.client import Client

POD, FRIEND, STRANGER = "10.244.0.3", "10.244.0.4", "10.244.0.5"
WEB = (PortRange("TCP", 443, 443),)
ONLY = Isolation({POD: PodIsolation(egress=(Allowed((Peer("192.0.2.0/24", ("192.0.2.9/32",)),), WEB),))})


def test_a_service_leads_only_to_endpoints_that_the_client_may_reach():
    rules = Isolation(
        {FRIEND: PodIsolation(ingress=()), POD: PodIsolation(egress=(Allowed((Peer(f"{STRANGER}/32"),)),))}
    )
    endpoints = (ServiceEndpoint(FRIEND, 80), ServiceEndpoint(STRANGER, 80))
    port = _Port(endpoints, rules.allows)
    assert port.in_turn(POD) == [ServiceEndpoint(STRANGER, 80)]
    assert port.in_turn("10.244.0.9") == [ServiceEndpoint(STRANGER, 80)]


async def test_an_isolated_pod_reaches_no_address_of_the_cluster_through_the_proxy():
    open_ = egress_proxy.cluster_side(lambda host, caller: [FRIEND], policy=ONLY)
    with pytest.raises(ProxyError, match="No NetworkPolicy lets this pod connect to web:443: add an egress rule"):
        await open_(ProxyRequest(host="web", port=443), POD)


def test_an_isolated_pod_reaches_the_outer_part_neither_through_the_inner_one_nor_through_a_service():
    network = Network(cast("Client", None), random.Random(0), load_policies=lambda _: None)
    network._policies.isolation = Isolation({POD: PodIsolation(egress=(Allowed((Peer("10.0.0.0/8"),)),))})
    service, outer = ServiceEndpoint("10.96.0.9", 80), ServiceEndpoint(CLUSTER_IP, egress_proxy.OUTER_PORT)
    network._routes = {service: (outer,)}
    assert not network.allows(POD, outer.address, outer.port)
    assert not network.allows(POD, service.address, service.port)
    assert not network._allows(POD, outer.address, outer.port)
    assert network.allows(POD, CLUSTER_IP, 53)
    assert network.allows(FRIEND, outer.address, outer.port)


async def test_the_outer_part_gets_the_networks_of_the_pod_whatever_the_pod_wrote():
    heard = asyncio.Queue[bytes]()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await heard.put(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    async with server:
        open_ = egress_proxy.cluster_side(lambda *_: [], server.sockets[0].getsockname(), ONLY)
        head = b"CONNECT example.com:443 HTTP/1.1\r\nSkysail-Destinations: 0.0.0.0/0\r\nA: b\r\n\r\n"
        upstream = await open_(http_proxy.parse(head), POD)
        upstream.writer.write(upstream.first)
        request = http_proxy.parse(await heard.get())
        upstream.writer.close()
        assert request.destinations == "192.0.2.0/24!192.0.2.9/32"
        with pytest.raises(ProxyError, match="No NetworkPolicy"):
            await open_(http_proxy.parse(head.replace(b":443", b":80")), POD)


@pytest.mark.parametrize(
    ("addresses", "status"),
    [(["192.0.2.7"], 502), (["192.0.2.9"], 403), (["198.51.100.1"], 403), (["2001:db8::1"], 403)],
)
async def test_the_outer_part_compares_the_resolved_address(addresses, status, monkeypatch):
    async def look_up(_host: str, _port: int) -> list[str]:
        return addresses

    async def refuse(request: ProxyRequest, _addresses: list[str]) -> None:
        raise ProxyError(502, request.where)

    monkeypatch.setattr(http_proxy, "connect", refuse)
    open_ = egress_proxy.host_side(EgressPolicy(is_host_address=lambda _: False), look_up)
    request = ProxyRequest(host="example.com", port=443, destinations="192.0.2.0/24!192.0.2.9/32")
    with pytest.raises(ProxyError) as refused:
        await open_(request, "")
    assert refused.value.status == status


def test_the_header_never_leaves_the_proxy():
    head = http_proxy.restrict(b"GET http://example.com/x HTTP/1.1\r\nHost: example.com\r\n\r\n", "192.0.2.0/24")
    request = http_proxy.parse(head)
    assert (request.destinations, b"kysail-" in request.head) == ("192.0.2.0/24", False)
