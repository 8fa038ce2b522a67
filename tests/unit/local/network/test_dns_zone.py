from __future__ import annotations

import pytest

from skysail.kube.api.objects import Meta
from skysail.local.network import dns_zone
from skysail.local.network.dns_zone import OwnPod, Target
from skysail.local.network.objects import (
    Conditions,
    Endpoint,
    EndpointPort,
    EndpointSlice,
    Service,
    ServicePort,
    ServiceSpec,
)

ZONE = "shop.svc.cluster.local"


def service(name, **spec):
    return Service(metadata=Meta(name=name, namespace="shop"), spec=ServiceSpec(**spec))


HTTP = (EndpointPort("http", 8000),)


def slice_of(name, *endpoints, ports=HTTP, **fields):
    labels = {"kubernetes.io/service-name": name}
    metadata = Meta(name=f"{name}-1", namespace="shop", labels=labels)
    return EndpointSlice(metadata=metadata, endpoints=endpoints, ports=ports, **fields)


WEB = service("web", cluster_ip="10.96.0.7", ports=(ServicePort(80, "http"), ServicePort(53, "dns", "UDP")))
JOB = service("job", cluster_ip="None", publish_not_ready_addresses=True)
SET = service("set", cluster_ip="None")


def test_a_service_is_its_address_and_its_named_ports():
    zone = dns_zone.build([WEB], [])
    assert zone.addresses == {f"web.{ZONE}": ("10.96.0.7",)}
    assert zone.targets == {
        f"_http._tcp.web.{ZONE}": (Target(f"web.{ZONE}", 80),),
        f"_dns._udp.web.{ZONE}": (Target(f"web.{ZONE}", 53),),
    }
    assert zone.pointers == {"7.0.96.10.in-addr.arpa": f"web.{ZONE}"}


def test_a_headless_service_is_its_ready_pods_by_hostname_or_by_address():
    endpoints = (
        Endpoint(("10.244.0.5",), hostname="set-0"),
        Endpoint(("10.244.0.6",), Conditions(ready=True)),
        Endpoint(("10.244.0.7",), Conditions(ready=False), hostname="set-2"),
    )
    zone = dns_zone.build([SET], [slice_of("set", *endpoints)])
    assert zone.addresses == {
        f"set.{ZONE}": ("10.244.0.5", "10.244.0.6"),
        f"set-0.set.{ZONE}": ("10.244.0.5",),
        f"10-244-0-6.set.{ZONE}": ("10.244.0.6",),
    }
    assert zone.targets == {
        f"_http._tcp.set.{ZONE}": (Target(f"10-244-0-6.set.{ZONE}", 8000), Target(f"set-0.set.{ZONE}", 8000))
    }
    assert zone.pointers["5.0.244.10.in-addr.arpa"] == f"set-0.set.{ZONE}"


def test_slices_of_other_services_and_families_are_not_mixed_in():
    sixth = slice_of("set", Endpoint(("fd00::1",)), address_type="IPv6")
    other = slice_of("other", Endpoint(("10.244.0.9",)))
    unlabelled = EndpointSlice(metadata=Meta(name="x", namespace="shop"), endpoints=(Endpoint(("10.244.0.8",)),))
    assert dns_zone.build([SET], [sixth, other, unlabelled]).addresses == {}


def test_dns_zone_own_pods_with_unready_published_have_names_before_their_slice():
    own = [OwnPod("shop", "job-0", "job", "10.244.0.5"), OwnPod("shop", "set-0", "set", "10.244.0.6")]
    elsewhere = OwnPod("garden", "job-1", "job", "10.244.0.7")
    zone = dns_zone.build([JOB, SET], [], [*own, elsewhere])
    assert zone.addresses == {f"job.{ZONE}": ("10.244.0.5",), f"job-0.job.{ZONE}": ("10.244.0.5",)}


def test_a_pod_that_is_known_twice_has_one_address():
    written = slice_of("job", Endpoint(("10.244.0.5",), hostname="job-0"))
    zone = dns_zone.build([JOB], [written], [OwnPod("shop", "job-0", "job", "10.244.0.5")])
    assert zone.addresses[f"job-0.job.{ZONE}"] == ("10.244.0.5",)


def test_another_name_is_an_alias_unless_dns_cannot_say_it():
    good = service("db", type="ExternalName", external_name="DB.example.com.")
    bad = service("long", type="ExternalName", external_name="x" * 64 + ".example.com")
    assert dns_zone.build([good, bad], []).aliases == {f"db.{ZONE}": "db.example.com"}


@pytest.mark.parametrize(
    ("name", "is_expected"),
    [
        (f"job-7.job.{ZONE}", True),
        (f"job-0.job.{ZONE}", False),  # it is there
        (f"job.{ZONE}", False),  # the Service itself
        (f"x.job-7.job.{ZONE}", False),  # below a pod is nothing
        (f"x.web.{ZONE}", False),  # not headless
        (f"x.gone.{ZONE}", False),  # no such Service
        ("job-7.job.garden.svc.cluster.local", False),
        ("example.com", False),
        ("", False),
    ],
)
def test_only_an_unknown_pod_below_a_headless_service_is_expected(name, is_expected):
    zone = dns_zone.build([JOB, WEB], [], [OwnPod("shop", "job-0", "job", "10.244.0.5")])
    assert zone.is_pending(name) is is_expected


@pytest.mark.parametrize(
    ("name", "is_known"),
    [
        (f"web.{ZONE}", True),
        (f"_http._tcp.web.{ZONE}", True),
        (f"_tcp.web.{ZONE}", True),
        (ZONE, True),
        ("svc.cluster.local", True),
        ("cluster.local", True),
        ("7.0.96.10.in-addr.arpa", True),
        ("garden.svc.cluster.local", False),
        (f"set.{ZONE}", False),  # headless and without pods: the specification says that it does not exist
        (f"web.{ZONE}.{ZONE}", False),
    ],
)
def test_which_names_exist(name, is_known):
    assert dns_zone.build([WEB, SET], []).has(name) is is_known


@pytest.mark.parametrize(
    ("name", "is_ours"),
    [
        ("cluster.local", True),
        ("a.b.cluster.local", True),
        ("notcluster.local", False),
        ("5.0.244.10.in-addr.arpa", True),
        ("7.0.96.10.in-addr.arpa", True),
        ("1.1.1.1.in-addr.arpa", False),
        ("x.in-addr.arpa", False),
        ("example.com", False),
    ],
)
def test_which_names_only_we_can_know(name, is_ours):
    assert dns_zone.is_ours(name) is is_ours


def test_a_pod_looks_in_its_own_namespace_first():
    assert dns_zone.resolv_conf("shop") == (
        "search shop.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.244.0.1\noptions ndots:5\n"
    )


@pytest.mark.parametrize(
    ("host", "namespace", "addresses"),
    [
        ("web", "shop", ["10.96.0.7"]),
        ("WEB.", "shop", ["10.96.0.7"]),
        ("web", "garden", []),
        ("web.shop", "garden", ["10.96.0.7"]),
        ("web.shop.svc", "garden", ["10.96.0.7"]),
        (f"web.{ZONE}", "garden", ["10.96.0.7"]),
        ("job-0.job", "shop", ["10.244.0.5"]),
        ("nickname", "shop", ["10.96.0.7"]),
        ("10.244.3.4", "shop", ["10.244.3.4"]),
        ("10.96.3.4", "shop", ["10.96.3.4"]),
        ("127.0.0.1", "shop", []),
        ("example.com", "shop", []),
        ("", "shop", []),
    ],
)
def test_what_a_pod_means_by_a_host(host, namespace, addresses):
    nickname = service("nickname", type="ExternalName", external_name=f"web.{ZONE}")
    zone = dns_zone.build([WEB, JOB, nickname], [], [OwnPod("shop", "job-0", "job", "10.244.0.5")])
    assert dns_zone.resolve(zone, host, namespace) == addresses
