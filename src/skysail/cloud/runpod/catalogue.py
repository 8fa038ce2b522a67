"""RunPod's catalogue as offers, and the machine for a launch without GPUs. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from skysail.cloud import machine_prices
from skysail.cloud.machine_rates import Flavor
from skysail.cloud.offers import Offer, Stock
from skysail.cloud.provider import ResourceLimits
from skysail.cloud.runpod import api

PROVIDER = "runpod"
TIERS = ("SECURE", "COMMUNITY")
# Launch options with the sizes of the disks that end with the pod, and the price of a GB for an hour. A month has 730.
DISK_OPTIONS = ("container-disk-gb", "volume-gb")
USD_PER_DISK_GB = 0.10 / 730
_STOCK: dict[str, Stock] = {"HIGH": "High", "MEDIUM": "Medium", "LOW": "Low", "NONE": "None"}
_MAX_PRICE = 1e4
_MIN_VCPUS = 2
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


def flavors(cpus: Iterable[api.CpuType]) -> tuple[Flavor, ...]:
    """Return the types of machines without GPU that have a price."""
    return tuple(
        Flavor(
            id=cpu.id,
            usd_per_vcpu=cpu.price.secure_per_vcpu or 0.0,
            min_vcpus=max(cpu.vcpu.min, _MIN_VCPUS),
            max_vcpus=cpu.vcpu.max,
            gb_per_vcpu=cpu.ram_gb_per_vcpu,
            regions=tuple(region for region, _ in _places(cpu.availability, cpu.data_centers) if region),
        )
        for cpu in cpus
        if _is_price(cpu.price.secure_per_vcpu)
    )


def cpu_order(flavors: Iterable[Flavor], size: ResourceLimits, region: str) -> api.CpuOrder | None:
    """Return the cheapest flavor and size with enough cores and memory, or None if there is none."""
    found = machine_prices.cheapest_flavor(flavors, size, region)
    return None if found is None else api.CpuOrder(id=found[1], vcpu_count=found[2])


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
