"""Prices of machines by their size. Pure.

A cloud that bills CPU or memory lists its rates with its offers. So claims, the choice between clouds and
`skysail plan`, which has no account, compute the same price. The other clouds' offers price the whole machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from skysail.cloud.errors import Rejected
from skysail.cloud.machine_rates import CoreRates, Flavor, FlavorRates
from skysail.cloud.offers import Offer, OfferList
from skysail.cloud.provider import ResourceLimits

_GB = 10**9
_MIB = 2**20
_MIB_PER_GIB = 1024


class MachineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Size of a machine: GPUs, CPU and memory, and the options of its launch."""

    gpu_count: int = 0
    size: ResourceLimits = ResourceLimits()
    options: tuple[tuple[str, str], ...] = ()


def price_offers(listed: OfferList, request: MachineRequest) -> tuple[Offer, ...]:
    """Return the offers with the highest price of a machine of this size, without those that are too small.

    The price of an offer with GPUs stays the price of one GPU, with its share of CPU, memory and disks.
    Raises Rejected if an option names an unknown region.
    """
    match listed.rates:
        case CoreRates():
            return tuple(_with_cores(offer, listed.rates, request) for offer in listed.offers)
        case FlavorRates():
            return _with_flavors(listed.offers, listed.rates, request)
        case None:
            return listed.offers


def machine_usd_per_hour(rates: CoreRates, size: ResourceLimits) -> float:
    """Return the price of the upper bounds of CPU and memory, without the multiplier of a region."""
    cores = rates.default_cores if size.cpu is None else max(rates.min_cores, size.cpu / rates.threads_per_core)
    gib = rates.default_gib if size.memory is None else max(1, math.ceil(size.memory / _MIB)) / _MIB_PER_GIB
    return cores * rates.usd_per_core + gib * rates.usd_per_gib


def app_rates(rates: CoreRates) -> CoreRates:
    """Return the rates of a container of a web App."""
    return replace(rates, usd_per_core=rates.app_usd_per_core, usd_per_gib=rates.app_usd_per_gib)


def multiplier(rates: CoreRates, region: str) -> float:
    """Return the multiplier of a region; 1 if the cloud chooses. Raises Rejected for an unknown region."""
    if region and region not in rates.regions:
        names = ", ".join(sorted(rates.regions))
        raise Rejected("UnknownRegion", f"There is no region {region}: use one of {names}.")
    return rates.regions[region] if region else 1.0


def cheapest_flavor(flavors: Iterable[Flavor], size: ResourceLimits, region: str) -> tuple[float, str, int] | None:
    """Return price, flavor and cores of the cheapest machine that is large enough, or None if there is none."""
    found: list[tuple[float, str, int]] = []
    for flavor in flavors:
        if region and region not in flavor.regions:
            continue
        cores = max(size.cpu or 0.0, flavor.min_vcpus)
        if size.memory and flavor.gb_per_vcpu > 0:
            cores = max(cores, size.memory / _GB / flavor.gb_per_vcpu)
        count = 1 << math.ceil(math.log2(cores))
        if count <= flavor.max_vcpus:
            found.append((round(flavor.usd_per_vcpu * count, 6), flavor.id, count))
    return min(found, default=None)


def _with_cores(offer: Offer, rates: CoreRates, request: MachineRequest) -> Offer:
    options = dict(request.options)
    option = options.get(rates.region_option, "")
    if rates.app_option and rates.app_option in options:
        rates = app_rates(rates)
    machine = machine_usd_per_hour(rates, request.size) * multiplier(rates, offer.region or option)
    if not offer.gpu_type:
        return replace(offer, usd_per_hour=round(machine, 6))
    count = max(request.gpu_count, 1)
    gpus = offer.usd_per_hour * count * (1.0 if offer.region else multiplier(rates, option))
    return replace(offer, usd_per_hour=round(machine + gpus, 6) / count)


def _with_flavors(offers: Iterable[Offer], rates: FlavorRates, request: MachineRequest) -> tuple[Offer, ...]:
    options = dict(request.options)
    region = rates.volumes.get(options.get(rates.volume_option, ""))
    disks = rates.usd_per_disk_gb * sum(int(options.get(name, "0")) for name in rates.disk_options)
    count, priced = max(request.gpu_count, 1), []
    for offer in offers:
        if region is not None and offer.region not in {"", region}:
            continue
        found = None if offer.gpu_type else cheapest_flavor(rates.flavors, request.size, offer.region)
        if offer.gpu_type:
            priced.append(replace(offer, usd_per_hour=offer.usd_per_hour + round(disks, 6) / count))
        elif found is not None:
            priced.append(replace(offer, usd_per_hour=round(found[0] + disks, 6)))
    return tuple(priced)
