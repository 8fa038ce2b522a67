"""EndpointSlices of Services whose traffic goes through the bridge."""

from __future__ import annotations

from typing import Any

from skysail.claims.bridging import endpoint_slices
from skysail.claims.bridging.endpoint_slices import PodRoute, Readiness, SlicePort
from skysail.kube.api.objects import Meta


def manifest(service: str = "web", *addresses: str, rank: int = 0) -> dict[str, Any]:
    readiness = Readiness(ready=True, serving=True)
    return endpoint_slices.manifest(
        ("n", service),
        SlicePort("http"),
        PodRoute(pod=Meta(name="p", namespace="n", uid="u"), claim="u-0", bridge_port=20001, rank=rank),
        addresses=addresses,
        readiness=readiness,
    )


def test_slice_has_the_type_of_its_addresses():
    assert manifest("web", "10.0.0.1")["addressType"] == "IPv4"
    assert manifest("web", "fd00::1", "fd00::2")["addressType"] == "IPv6"


def test_slice_of_another_address_type_has_another_name():
    """The API server rejects a change of the type."""
    assert manifest("web", "10.0.0.1")["metadata"]["name"] != manifest("web", "fd00::1")["metadata"]["name"]


def test_slice_of_another_rank_has_another_name():
    names = {manifest("web", "10.0.0.1", rank=rank)["metadata"]["name"] for rank in range(3)}
    assert len(names) == 3


def test_services_with_a_common_start_have_slices_of_their_own():
    names = [manifest("x" * 55 + end, "10.0.0.1")["metadata"]["name"] for end in ("a", "b")]
    assert names[0] != names[1]
    assert all(len(name) <= 63 for name in names)
