from __future__ import annotations

import pytest

from skysail.kube.api.objects import Meta
from skysail.local.errors import Misused
from skysail.local.network import service_lookup
from skysail.local.network.objects import Service, ServicePort, ServiceSpec

HTTP, HEALTH, DNS = ServicePort(80, "http"), ServicePort(8081, "health"), ServicePort(53, "dns", "UDP")


def service(*ports, **spec):
    return Service(metadata=Meta(name="web", namespace="shop"), spec=ServiceSpec(ports=ports, **spec))


@pytest.mark.parametrize(
    ("ports", "port", "chosen"),
    [
        ((HTTP,), "", HTTP),
        ((HTTP, DNS), "", HTTP),
        ((HTTP, HEALTH), "health", HEALTH),
        ((HTTP, HEALTH), "8081", HEALTH),
    ],
)
def test_the_port_that_is_meant(ports, port, chosen):
    assert service_lookup.choose(service(*ports), port) == chosen


@pytest.mark.parametrize(
    ("known", "port", "sentence"),
    [
        (service(HTTP, HEALTH), "", "Service web has several ports: open web:http or web:health."),
        (service(HTTP, ServicePort(81)), "ssh", "Service web has no port ssh: open web:http or web:81."),
        (
            service(type="ExternalName", external_name="x.example"),
            "",
            "Service web is an alias of x.example: open that instead.",
        ),
        (service(DNS), "", "Service web has no TCP port: only TCP ports can be opened."),
    ],
)
def test_what_cannot_be_opened_says_what_can(known, port, sentence):
    with pytest.raises(Misused) as refused:
        service_lookup.choose(known, port)
    assert str(refused.value) == sentence
