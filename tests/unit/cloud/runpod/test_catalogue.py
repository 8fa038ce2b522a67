from skysail.cloud.machine_prices import MachineRequest, price_offers
from skysail.cloud.machine_rates import FlavorRates
from skysail.cloud.offers import Offer, OfferList
from skysail.cloud.provider import ResourceLimits
from skysail.cloud.runpod import api, catalogue

CPUS = (
    api.CpuType(id="cpu3c", ram_gb_per_vcpu=2.0, price=api.VcpuPrice(secure_per_vcpu=0.03)),
    api.CpuType(id="cpu3m", ram_gb_per_vcpu=8.0, price=api.VcpuPrice(secure_per_vcpu=0.05)),
)
RATES = FlavorRates(flavors=catalogue.flavors(CPUS))


def priced(size: ResourceLimits) -> list[float]:
    listed = OfferList(tuple(catalogue.cpu_offers(CPUS)), 0.0, RATES)
    return [offer.usd_per_hour for offer in price_offers(listed, MachineRequest(size=size))]


def test_a_cpu_offer_costs_all_cores_of_the_machine_that_is_ordered():
    assert priced(ResourceLimits()) == [0.06]
    assert priced(ResourceLimits(cpu=12.0)) == [0.48]
    large = ResourceLimits(cpu=2.0, memory=128 * 10**9)
    assert priced(large) == [0.8]
    assert catalogue.cpu_order(catalogue.flavors(CPUS), large, "") == api.CpuOrder(id="cpu3m", vcpu_count=16)


def test_a_machine_that_is_too_large_has_no_offer():
    assert priced(ResourceLimits(cpu=33.0)) == []


def test_the_size_does_not_change_the_price_of_gpus():
    gpu = Offer(provider="runpod", gpu_type="NVIDIA A40", usd_per_hour=0.4)
    large = MachineRequest(gpu_count=1, size=ResourceLimits(cpu=64.0))
    assert price_offers(OfferList((gpu,), 0.0, RATES), large) == (gpu,)
