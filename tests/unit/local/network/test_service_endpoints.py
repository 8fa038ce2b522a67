from __future__ import annotations

import pytest

from skysail.kube.api.objects import Meta
from skysail.local.network import service_endpoints
from skysail.local.network.objects import (
    Conditions,
    Endpoint,
    EndpointPort,
    EndpointSlice,
    Service,
    ServicePort,
    ServiceSpec,
)
from skysail.local.network.service_endpoints import ServiceEndpoint

READY, UNREADY = Conditions(ready=True), Conditions(ready=False)
LEAVING = Conditions(ready=False, serving=True, terminating=True)
DEAF = Conditions(ready=False, serving=False, terminating=True)


UNNAMED = (EndpointPort("", 8000),)


def slice_of(*endpoints, ports=UNNAMED):
    labels = {"kubernetes.io/service-name": "web"}
    metadata = Meta(name="web-1", namespace="shop", labels=labels)
    return EndpointSlice(metadata=metadata, endpoints=endpoints, ports=ports)


def service(**spec):
    return Service(metadata=Meta(name="web", namespace="shop"), spec=ServiceSpec(**spec))


def endpoint(last, conditions=READY):
    return Endpoint((f"10.244.0.{last}",), conditions)


@pytest.mark.parametrize(
    ("slices", "wanted"),
    [
        ([], ()),
        ([slice_of()], ()),
        ([EndpointSlice(metadata=Meta(namespace="shop", labels={"kubernetes.io/service-name": "web"}))], ()),
        ([slice_of(endpoint(3), endpoint(2))], ("10.244.0.2", "10.244.0.3")),
        ([slice_of(endpoint(2)), slice_of(endpoint(3), endpoint(2))], ("10.244.0.2", "10.244.0.3")),
        ([slice_of(endpoint(2, Conditions()))], ("10.244.0.2",)),  # not said counts as ready
        ([slice_of(endpoint(2), endpoint(3, UNREADY), endpoint(4, LEAVING))], ("10.244.0.2",)),
        ([slice_of(endpoint(3, UNREADY), endpoint(4, LEAVING), endpoint(5, DEAF))], ("10.244.0.4",)),
        ([slice_of(endpoint(2), ports=(EndpointPort("other", 8000),))], ()),
        ([slice_of(endpoint(2), ports=(EndpointPort(None, 8000),))], ("10.244.0.2",)),
        ([slice_of(endpoint(2), ports=(EndpointPort("", None),))], ()),
        ([slice_of(endpoint(2), ports=None)], ()),
    ],
)
def test_who_stands_behind_a_port(slices, wanted):
    built = _served([service(cluster_ip="10.96.0.7", ports=(ServicePort(80),))], slices)
    assert built == {ServiceEndpoint("10.96.0.7", 80): tuple(ServiceEndpoint(address, 8000) for address in wanted)}


def test_each_port_leads_to_the_pods_port_of_its_name():
    ports = (ServicePort(80, "http"), ServicePort(81, "health"))
    there = slice_of(endpoint(2), ports=(EndpointPort("health", 9000), EndpointPort("http", 8000)))
    assert _served([service(cluster_ip="10.96.0.7", ports=ports)], [there]) == {
        ServiceEndpoint("10.96.0.7", 80): (ServiceEndpoint("10.244.0.2", 8000),),
        ServiceEndpoint("10.96.0.7", 81): (ServiceEndpoint("10.244.0.2", 9000),),
    }


@pytest.mark.parametrize(
    "spec",
    [
        {"cluster_ip": "None", "ports": (ServicePort(80),)},
        {"cluster_ip": "", "type": "ExternalName", "external_name": "x.example.com"},
        {"cluster_ip": "10.96.0.7", "ports": (ServicePort(53, "dns", "UDP"),)},
        {"cluster_ip": "10.96.0.7"},
    ],
)
def test_what_has_no_address_or_no_tcp_port_has_no_way(spec):
    assert _served([service(**spec)], []) == {}


def test_build_ports_above_the_limit_are_left_out_and_named():
    crowd = service(cluster_ip="10.96.0.7", ports=tuple(ServicePort(number, f"p{number}") for number in range(1, 100)))
    other = Service(
        metadata=Meta(name="other", namespace="yard"),
        spec=ServiceSpec(cluster_ip="10.96.0.8", ports=(ServicePort(80),)),
    )
    routes = service_endpoints.build([crowd, other], [], max_ports=40)
    assert len(routes.served) == 10 + 1
    assert ServiceEndpoint("10.96.0.8", 80) in routes.served
    assert [str(key) for key in routes.truncated] == ["shop/web"]


def test_build_many_namespaces_share_one_limit():
    services = [
        Service(
            metadata=Meta(name="web", namespace=f"team-{number}"),
            spec=ServiceSpec(cluster_ip=f"10.96.1.{number}", ports=tuple(ServicePort(port) for port in range(1, 30))),
        )
        for number in range(10)
    ]
    assert len(service_endpoints.build(services, [], max_ports=40).served) == 40


def _served(services, slices):
    routes = service_endpoints.build(services, slices, max_ports=1000)
    assert routes.truncated == ()
    return routes.served
