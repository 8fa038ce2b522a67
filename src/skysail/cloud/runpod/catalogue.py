"""RunPod's catalogue as offers, and the machine for a launch without GPUs. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from skysail.cloud.offers import Offer, Stock
from skysail.cloud.provider import ResourceLimits
from skysail.cloud.runpod import api

PROVIDER = "runpod"
TIERS = ("SECURE", "COMMUNITY")
_STOCK: dict[str, Stock] = {"HIGH": "High", "MEDIUM": "Medium", "LOW": "Low", "NONE": "None"}
_MAX_PRICE = 1e4
_MIN_VCPUS = 2
_GB = 10**9
_VENDOR = "NVIDIA "
# Parts of RunPod's names that users leave out.
_EXTRAS = (" Generation", " GeForce")


def gpu_offers(gpus: Iterable[api.GpuType], tier: str) -> Iterator[Offer]:
    """Yield one offer per data center, or one without a region if the service names no data center.

    AMD cards and slices of a card are used only if a pod asks for them by name: they run another software, or less.
    """
    for gpu in gpus:
        price = gpu.price.secure if tier == "SECURE" else gpu.price.community
        count = gpu.max_count.secure if tier == "SECURE" else gpu.max_count.community
        is_offered = gpu.secure if tier == "SECURE" else gpu.community
        # A tier that does not have the type shows the price 0, or none.
        if not is_offered or not _is_price(price) or not gpu.id or gpu.memory <= 0:
            continue
        for region, stock in _places(gpu.availability, gpu.data_centers):
            yield Offer(
                provider=PROVIDER,
                gpu_type=gpu.id,
                aliases=tuple(_aliases(gpu)),
                gpu_memory=gpu.memory,
                max_count=max(count or 1, 1),
                usd_per_hour=price or 0.0,
                stock=stock,
                region=region,
                cloud_type=tier,
                cuda_versions=tuple(row.version for row in gpu.cuda_versions or () if row.available),
                is_only_by_name=gpu.manufacturer.upper() != "NVIDIA" or " MIG " in gpu.id,
            )


def cpu_offers(cpus: Iterable[api.CpuType]) -> Iterator[Offer]:
    """Yield the cheapest machine without GPU of each data center, at its smallest size."""
    best: dict[str, Offer] = {}
    for cpu in cpus:
        if not _is_price(cpu.price.secure_per_vcpu):
            continue
        price = round((cpu.price.secure_per_vcpu or 0.0) * max(cpu.vcpu.min, _MIN_VCPUS), 6)
        for region, stock in _places(cpu.availability, cpu.data_centers):
            offer = Offer(provider=PROVIDER, usd_per_hour=price, stock=stock, region=region, cloud_type="SECURE")
            old = best.get(region)
            if old is None or (old.stock == "None", old.usd_per_hour) > (offer.stock == "None", price):
                best[region] = offer
    yield from best.values()


def price_cpu_offers(offers: Iterable[Offer], cpus: Iterable[api.CpuType], size: ResourceLimits) -> Iterator[Offer]:
    """Yield all offers, those without GPU at the price of a machine of this size, if their data center has one."""
    known = tuple(cpus)
    for offer in offers:
        found = None if offer.gpu_type else _cheapest(known, size, offer.region)
        if offer.gpu_type:
            yield offer
        elif found is not None:
            yield msgspec.structs.replace(offer, usd_per_hour=round(found[0], 6))


def cpu_order(cpus: Iterable[api.CpuType], size: ResourceLimits, region: str) -> api.CpuOrder | None:
    """Return the cheapest flavour and size with enough cores and memory, or None if there is none."""
    found = _cheapest(cpus, size, region)
    return None if found is None else api.CpuOrder(id=found[1], vcpu_count=found[2])


def _cheapest(cpus: Iterable[api.CpuType], size: ResourceLimits, region: str) -> tuple[float, str, int] | None:
    """Return the price, the flavour and the number of cores of the cheapest machine, or None if there is none."""
    found: list[tuple[float, str, int]] = []
    for cpu in cpus:
        places: Mapping[str, Stock] = dict(_places(cpu.availability, cpu.data_centers))
        if not _is_price(cpu.price.secure_per_vcpu) or (region and region not in places):
            continue
        cores = max(size.cpu or 0.0, _MIN_VCPUS, cpu.vcpu.min)
        if size.memory and cpu.ram_gb_per_vcpu > 0:
            cores = max(cores, size.memory / _GB / cpu.ram_gb_per_vcpu)
        count = 1 << math.ceil(math.log2(cores))
        if count <= cpu.vcpu.max:
            found.append(((cpu.price.secure_per_vcpu or 0.0) * count, cpu.id, count))
    return min(found, default=None)


def _places(availability: str, centers: tuple[api.DataCenterStock, ...] | None) -> Iterator[tuple[str, Stock]]:
    if not centers:
        yield "", _STOCK.get(availability, "Unknown")
    for center in centers or ():
        yield center.id, _STOCK.get(center.availability, "Unknown")


def _aliases(gpu: api.GpuType) -> Iterator[str]:
    """Yield names that users write for the type: the service's display name, and its id without the vendor."""
    short = gpu.id.removeprefix(_VENDOR)
    for extra in _EXTRAS:
        short = short.replace(extra, "").replace(extra.strip() + " ", "")
    names = dict.fromkeys((gpu.name, short, gpu.name.removeprefix("RTX "), short.split(" ")[0]))
    if short.startswith(("A100", "H100")):
        names |= dict.fromkeys((short[:4], f"{short[:4]}-{gpu.memory}GB"))
    yield from (name for name in names if name and name not in {gpu.id, "RTX", "GeForce"} and not name.isdigit())


def _is_price(price: float | None) -> bool:
    return price is not None and math.isfinite(price) and 0 < price <= _MAX_PRICE
