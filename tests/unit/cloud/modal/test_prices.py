import pytest

from skysail.cloud.account import GpuRequest
from skysail.cloud.machine_prices import MachineRequest, price_offers
from skysail.cloud.modal.prices import AS_OF, PriceTable
from skysail.cloud.provider import ResourceLimits

NONE = ResourceLimits()
# 4 cores and 16 GiB: the upper bounds of a sandbox without limits.
DEFAULTS = 4 * 0.1419 + 16 * 0.024
LARGE = ResourceLimits(cpu=64.0, memory=512 * 2**30)


def test_a_gpu_sandbox_costs_its_gpus_and_what_it_requests():
    prices = PriceTable()
    assert prices.usd_per_hour(GpuRequest("H100", 8), NONE, "") == pytest.approx(31.6 + DEFAULTS)
    both = ResourceLimits(cpu=8.0, memory=32 * 2**30)
    assert prices.usd_per_hour(GpuRequest("T4"), both, "") == pytest.approx(0.59 + 4 * 0.1419 + 32 * 0.024)


def test_regions_multiply_the_price():
    prices = PriceTable(regions={"us": 1.5})
    assert prices.usd_per_hour(GpuRequest("T4"), NONE, "us") == pytest.approx(1.5 * (0.59 + DEFAULTS))


def test_settings_override_single_prices():
    prices = PriceTable(overrides={"T4": 1.0, "cpu": 2.0})
    assert prices.usd_per_hour(GpuRequest("T4"), ResourceLimits(cpu=2.0), "") == pytest.approx(3.0 + 16 * 0.024)
    assert prices.usd_per_hour(GpuRequest("L4"), NONE, "") == pytest.approx(0.8 + 4 * 2.0 + 16 * 0.024)


def test_offers_are_dated_and_unique():
    listed = PriceTable(offered_regions=("us",)).offers()
    assert listed.at == AS_OF.timestamp()
    places = [(offer.gpu_type, offer.region) for offer in listed.offers]
    assert len(set(places)) == len(places) == 22
    by_place = {(offer.gpu_type, offer.region): offer.usd_per_hour for offer in listed.offers}
    assert by_place["T4", "us"] == pytest.approx(1.5 * by_place["T4", ""])


@pytest.mark.parametrize(("region", "factor"), [("", 1.0), ("us-east", 1.75)])
@pytest.mark.parametrize("count", [0, 1, 8])
def test_an_offer_for_a_pod_costs_what_its_sandbox_costs(count, region, factor):
    prices = PriceTable()
    request = MachineRequest(gpu_count=count, size=LARGE, options=(("modal-region", region),))
    priced = price_offers(prices.offers(), request)
    offer = next(offer for offer in priced if offer.gpu_type == ("H100" if count else ""))
    assert offer.total(count) == pytest.approx(factor * (3.95 * count + 32 * 0.1419 + 512 * 0.024))
    assert offer.total(count) == prices.usd_per_hour(GpuRequest("H100", count) if count else None, LARGE, region)


def test_the_region_of_an_offer_decides_its_price():
    prices = PriceTable(offered_regions=("us",))
    priced = price_offers(prices.offers(), MachineRequest(options=(("modal-region", "us-east"),)))
    found = {offer.region: offer.usd_per_hour for offer in priced if not offer.gpu_type}
    assert found == {"": pytest.approx(1.75 * DEFAULTS), "us": pytest.approx(1.5 * DEFAULTS)}


def test_the_price_has_the_smallest_size_that_modal_has():
    tiny = ResourceLimits(cpu=0.01, memory=1)
    assert PriceTable().usd_per_hour(None, tiny, "") == pytest.approx(0.125 * 0.1419 + 0.024 / 1024, abs=1e-6)
