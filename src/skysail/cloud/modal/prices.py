"""Prices of Modal. Pure.

Modal has no public API for list prices, so this table has a date, and the settings `modal_prices` and `modal_regions`
change it. A sandbox pays for its GPUs, and for the CPU and memory that it requests or uses, whichever is more. The
price here is that of the upper bounds: the most that a sandbox can cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from skysail.cloud import machine_prices, web_app
from skysail.cloud.account import GpuRequest
from skysail.cloud.errors import Rejected
from skysail.cloud.machine_rates import CoreRates
from skysail.cloud.offers import Offer, OfferList
from skysail.cloud.provider import ResourceLimits

NAME = "modal"
AS_OF = datetime(2026, 7, 1, tzinfo=UTC)
# Launch option that names the region of a sandbox.
REGION = "modal-region"
CPU = "cpu"
MEMORY = "memory"
# A Kubernetes core is a thread; Modal counts physical cores.
THREADS_PER_CORE = 2
# Request and upper bound of a sandbox whose container has neither limits nor requests.
DEFAULT_CORES = (0.125, 4.0)
DEFAULT_MIB = (128, 16384)
_MIB = 2**20
_MIB_PER_GIB = 1024


class GpuPrice(msgspec.Struct, frozen=True):
    """One GPU type: memory in GiB, US dollars per hour, other names, and the most GPUs of one sandbox."""

    type: str
    memory: int
    usd_per_hour: float
    aliases: tuple[str, ...] = ()
    max_count: int = 8


GPUS = (
    GpuPrice("T4", 16, 0.59),
    GpuPrice("L4", 24, 0.80),
    GpuPrice("A10", 24, 1.10, ("A10G",), max_count=4),
    GpuPrice("L40S", 48, 1.95),
    GpuPrice("A100-40GB", 40, 2.10, ("A100",)),
    GpuPrice("A100-80GB", 80, 2.50),
    GpuPrice("RTX-PRO-6000", 96, 3.03),
    GpuPrice("H100", 80, 3.95, ("H100!",)),
    GpuPrice("H200", 141, 4.54),
    GpuPrice("B200", 192, 6.25, ("B200+",)),
)
# US dollars per hour of a sandbox: a physical core, and a GiB of memory.
_CORE_HOUR = 0.1419
_GIB_HOUR = 0.024
# US dollars per hour of a Function: a physical core, and a GiB of memory.
_FUNCTION_CORE_HOUR = 0.04716
_FUNCTION_GIB_HOUR = 0.007992
# Multipliers by region: broad regions first.
REGIONS: dict[str, float] = {
    **dict.fromkeys(("us", "eu", "ap", "uk", "ca", "me", "sa", "af", "mx", "jp", "au"), 1.5),
    **dict.fromkeys(("us-east", "us-central", "us-south", "us-west"), 1.75),
    **dict.fromkeys(("eu-west", "eu-north", "eu-south"), 1.75),
    **dict.fromkeys(("ap-northeast", "ap-southeast", "ap-south", "ap-melbourne"), 1.75),
}


def cores(size: ResourceLimits) -> tuple[float, float]:
    """Return the request and the upper bound of a sandbox in physical cores."""
    if size.cpu is None:
        return DEFAULT_CORES
    count = max(DEFAULT_CORES[0], size.cpu / THREADS_PER_CORE)
    return count, count


def memory_mib(size: ResourceLimits) -> tuple[int, int]:
    """Return the request and the upper bound of a sandbox in MiB of memory."""
    if size.memory is None:
        return DEFAULT_MIB
    mib = max(1, math.ceil(size.memory / _MIB))
    return mib, mib


class PriceTable(msgspec.Struct, frozen=True, kw_only=True):
    """The prices above with the changes of the settings.

    `overrides`: US dollars per hour by GPU type, and of `cpu` (a physical core) and `memory` (a GiB).
    `regions`: multiplier by region. Offers are listed for the regions in `offered_regions`, and for any region.
    """

    overrides: Mapping[str, float] = {}
    regions: Mapping[str, float] = msgspec.field(default_factory=REGIONS.copy)
    offered_regions: tuple[str, ...] = ()

    def gpu(self, name: str) -> GpuPrice:
        """Return the price of a GPU type by its name or an alias, or of the cheapest type without a name.

        Raises Rejected for an unknown name.
        """
        if not name:
            return min((self.gpu(gpu.type) for gpu in GPUS), key=lambda gpu: gpu.usd_per_hour)
        for gpu in GPUS:
            if name.casefold() in {known.casefold() for known in (gpu.type, *gpu.aliases)}:
                return msgspec.structs.replace(gpu, usd_per_hour=self.overrides.get(gpu.type, gpu.usd_per_hour))
        names = ", ".join(gpu.type for gpu in GPUS)
        raise Rejected("UnknownGpu", f"Modal has no GPU {name}: use one of {names}.")

    def usd_per_hour(self, gpus: GpuRequest | None, size: ResourceLimits, region: str) -> float:
        """Return the highest price of a sandbox in US dollars per hour. Raises Rejected for an unknown region."""
        total = machine_prices.machine_usd_per_hour(self.rates, size)
        if gpus is not None:
            total += self.gpu(gpus.type).usd_per_hour * gpus.count
        return round(total * machine_prices.multiplier(self.rates, region), 6)

    def function_usd_per_hour(self, gpus: GpuRequest | None, size: ResourceLimits, region: str) -> float:
        """Return the highest price of one container of a Function in US dollars per hour.

        Overrides of CPU and memory are prices of sandboxes, so they do not apply.
        """
        total = machine_prices.machine_usd_per_hour(machine_prices.app_rates(self.rates), size)
        if gpus is not None:
            total += self.gpu(gpus.type).usd_per_hour * gpus.count
        return round(total * machine_prices.multiplier(self.rates, region), 6)

    def offers(self) -> OfferList:
        """Return all offers: for any region first, then for each offered region."""
        regions = ("", *self.offered_regions)
        offers = tuple(offer for region in regions for offer in self._offers(region))
        return OfferList(offers, AS_OF.timestamp(), self.rates)

    @property
    def rates(self) -> CoreRates:
        return CoreRates(
            usd_per_core=self.overrides.get(CPU, _CORE_HOUR),
            usd_per_gib=self.overrides.get(MEMORY, _GIB_HOUR),
            threads_per_core=THREADS_PER_CORE,
            min_cores=DEFAULT_CORES[0],
            default_cores=DEFAULT_CORES[1],
            default_gib=DEFAULT_MIB[1] / _MIB_PER_GIB,
            regions=dict(self.regions),
            region_option=REGION,
            app_option=web_app.OPTION,
            app_usd_per_core=_FUNCTION_CORE_HOUR,
            app_usd_per_gib=_FUNCTION_GIB_HOUR,
        )

    def _offers(self, region: str) -> tuple[Offer, ...]:
        factor = machine_prices.multiplier(self.rates, region)
        base = machine_prices.machine_usd_per_hour(self.rates, ResourceLimits())
        gpus = (self.gpu(gpu.type) for gpu in GPUS)
        return (
            Offer(provider=NAME, usd_per_hour=round(base * factor, 6), region=region),
            *(
                Offer(
                    provider=NAME,
                    gpu_type=gpu.type,
                    aliases=gpu.aliases,
                    gpu_memory=gpu.memory,
                    max_count=gpu.max_count,
                    usd_per_hour=round(gpu.usd_per_hour * factor, 6),
                    region=region,
                )
                for gpu in gpus
            ),
        )
