from __future__ import annotations

import re
from pathlib import Path

import pytest

from skysail.cloud.account import GpuRequest
from skysail.cloud.errors import Rejected
from skysail.cloud.simulated.vendors import MODAL, RUNPOD, VENDORS

CLOUDS = Path(__file__).parents[4] / "docs" / "clouds.md"


@pytest.mark.parametrize(
    ("vendor", "name", "usd"),
    [(MODAL, "H100", 3.95), (MODAL, "h100", 3.95), (MODAL, "a100-80gb", 2.5), (RUNPOD, "nvidia l4", 0.49)],
)
def test_the_name_of_a_gpu_is_known_in_any_case(vendor, name, usd):
    assert vendor.price(GpuRequest(name, 2)) == pytest.approx(2 * usd)


def test_a_gpu_that_the_cloud_has_not_is_refused_with_those_that_it_has():
    with pytest.raises(Rejected, match=r"no GPU H200: use one of T4, L4, .*, H100"):
        MODAL.price(GpuRequest("H200"))


@pytest.mark.parametrize("vendor", VENDORS.values(), ids=lambda vendor: vendor.name)
def test_the_gpus_and_their_prices_are_in_the_document(vendor):
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \| ([0-9.]+) \|$", CLOUDS.read_text(), re.MULTILINE)
    assert {name: float(usd) for cloud, name, usd in rows if cloud == vendor.name} == {
        machine.gpu_type: machine.usd_per_hour for machine in vendor.machines
    }
