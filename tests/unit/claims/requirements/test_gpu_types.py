from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skysail.claims.requirements.annotations import parse
from skysail.claims.requirements.gpu_types import label_to_type
from skysail.claims.requirements.types import OffloadRequest, PodSpecView
from skysail.cloud.account import GpuRequest
from skysail.cloud.simulated.vendors import VENDORS

PRODUCT, GKE = "nvidia.com/gpu.product", "cloud.google.com/gke-accelerator"
GPU, TYPE = "modal-operator.io/gpu", "modal-operator.io/gpu-type"


def expression(key: str, *values: str, operator: str = "In") -> dict:
    return {"key": key, "operator": operator, "values": list(values)}


def affinity(*terms: list[dict]) -> dict:
    rows = [{"matchExpressions": term} for term in terms]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": rows}}}


def request(annotations: dict[str, str] | None = None, *, limit: object = 0, **spec: object) -> OffloadRequest:
    containers = [{"resources": {"limits": {"nvidia.com/gpu": limit} if limit else {}}}]
    return parse(annotations or {}, {}, msgspec.convert({"containers": containers, **spec}, PodSpecView))


@pytest.mark.parametrize(
    ("annotations", "limit", "expected"),
    [
        ({}, 0, None),
        ({GPU: ""}, 0, None),
        ({}, 2, GpuRequest("", 2)),
        ({}, "2", GpuRequest("", 2)),
        ({GPU: ""}, 2, GpuRequest("", 2)),
        ({GPU: "T4"}, 0, GpuRequest("T4", 1)),
        ({GPU: "T4:3"}, 0, GpuRequest("T4", 3)),
        ({GPU: "H100!:8"}, 8, GpuRequest("H100!", 8)),
        ({GPU: "T4"}, 4, GpuRequest("T4", 4)),
        ({TYPE: "A100"}, 4, GpuRequest("A100", 4)),
        ({TYPE: "A100"}, 0, GpuRequest("A100", 1)),
        ({TYPE: "NVIDIA RTX 6000 Ada Generation"}, 1, GpuRequest("NVIDIA RTX 6000 Ada Generation", 1)),
        ({GPU: "A100:2", TYPE: "a100-40gb"}, 0, GpuRequest("A100", 2)),
        ({GPU: "A10G", TYPE: "A10"}, 0, GpuRequest("A10G", 1)),
    ],
)
def test_read_annotations_and_limits_gives_type_and_count(annotations, limit, expected):
    found = request(annotations, limit=limit)
    assert (found.gpus, found.errors) == (expected, ())


def test_read_request_without_limit_counts():
    spec = {
        "containers": [{"resources": {"requests": {"nvidia.com/gpu": 1}}}, {"resources": {"limits": {"cpu": "1"}}}, {}]
    }
    assert parse({}, {}, msgspec.convert(spec, PodSpecView)).gpus == GpuRequest("", 1)


@pytest.mark.parametrize("limit", ["half", "-1", "0.5", "1025", "inf", "nan", "1e99"])
def test_read_impossible_limit_is_error(limit):
    found = request(limit=limit)
    assert found.gpus is None
    assert "spec.containers[0].resources.limits[nvidia.com/gpu]" in found.errors[0]


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        ({}, ""),
        ({"nodeSelector": {"disk": "ssd"}}, ""),
        ({"nodeSelector": {PRODUCT: "Tesla-T4"}}, "T4"),
        ({"nodeSelector": {PRODUCT: "NVIDIA-A100-SXM4-40GB-SHARED"}}, "A100-40GB"),
        ({"nodeSelector": {PRODUCT: "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"}}, "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"),
        ({"nodeSelector": {GKE: "nvidia-l4"}}, "L4"),
        ({"nodeSelector": {GKE: "nvidia-tesla-t4", PRODUCT: "Tesla-T4"}}, "T4"),
        ({"affinity": affinity([expression(PRODUCT, "NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-PCIe")])}, "H100"),
        ({"affinity": affinity([expression(GKE, "nvidia-l4")], [expression(PRODUCT, "NVIDIA-L4")])}, "L4"),
        ({"affinity": affinity([expression(GKE, "nvidia-l4")], [expression("zone", "a")])}, ""),
        ({"affinity": affinity([expression(GKE, "nvidia-l4", operator="NotIn")])}, ""),
        ({"affinity": affinity()}, ""),
        ({"affinity": {"podAffinity": {}}}, ""),
        (
            {
                "nodeSelector": {GKE: "nvidia-l4"},
                "affinity": affinity([expression(PRODUCT, "NVIDIA-L4", "Tesla-T4")]),
            },
            "L4",
        ),
    ],
)
def test_read_hints_choose_the_type(spec, kind):
    found = request(limit=1, **spec)
    assert (found.gpus, found.errors) == (GpuRequest(kind, 1), ())
    assert request({TYPE: "B200"}, limit=1, **spec).gpus == GpuRequest("B200", 1)
    assert request(**spec).gpus is None


@pytest.mark.parametrize(
    ("spec", "choice"),
    [
        ({"affinity": affinity([expression(PRODUCT, "NVIDIA-L4", "Tesla-T4")])}, "allow L4 or T4"),
        ({"nodeSelector": {GKE: "nvidia-l4", PRODUCT: "Tesla-T4"}}, "allow no GPU type"),
    ],
)
def test_read_unclear_hints_are_error(spec, choice):
    (error,) = request(limit=1, **spec).errors
    assert choice in error
    assert TYPE in error
    assert request({TYPE: "L4"}, limit=1, **spec).errors == ()


@pytest.mark.parametrize(
    ("name", "provider", "gpu_type"),
    [
        ("A100", "modal", "A100-40GB"),
        ("a10g", "modal", "A10"),
        (label_to_type("NVIDIA-A100-80GB-PCIe"), "runpod", "NVIDIA A100 80GB PCIe"),
        (label_to_type("NVIDIA-GeForce-RTX-4090"), "runpod", "NVIDIA GeForce RTX 4090"),
        (label_to_type("NVIDIA-H100-80GB-HBM3"), "runpod", "NVIDIA H100 80GB HBM3"),
        (label_to_type("nvidia-tesla-a100"), "modal", "A100-40GB"),
    ],
)
def test_type_is_found_among_the_offers_of_the_cloud(name, provider, gpu_type):
    assert [offer.gpu_type for offer in VENDORS[provider].offers if offer.is_called(name)] == [gpu_type]


@given(st.dictionaries(st.sampled_from([PRODUCT, GKE, "zone"]), st.text(max_size=30), max_size=3))
def test_read_any_node_selector_never_raises(selector):
    found = request(limit=1, nodeSelector=selector)
    assert found.gpus is not None
    assert all(error.isprintable() for error in found.errors)
