"""Offers of clouds, and their ranking by price. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from skysail.cloud.machine_rates import MachineRates

Stock = Literal["High", "Medium", "Low", "None", "Unknown"]

_MAX_NAMES = 12
_STOCK_ORDER: dict[Stock, int] = {"High": 0, "Medium": 1, "Low": 2, "Unknown": 3, "None": 4}


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """One type of machine that a cloud offers, in one region and tier.

    `gpu_type`: the cloud's own name, empty for machines without GPUs. `aliases`: other names that users write for it.
    `gpu_memory`: GiB of each GPU. `max_count`: largest number of GPUs in one machine.
    `usd_per_hour`: price of one GPU, or of the whole machine if it has no GPU.
    `region`: empty if the cloud chooses. `cloud_type`: tier, such as SECURE or COMMUNITY; empty if there is only one.
    `cuda_versions`: empty if the cloud does not say.
    `is_only_by_name`: the type is used only if a pod asks for it by name, such as a slice of a GPU.
    """

    provider: str
    gpu_type: str = ""
    aliases: tuple[str, ...] = ()
    gpu_memory: int = 0
    max_count: int = 8
    usd_per_hour: float
    stock: Stock = "Unknown"
    region: str = ""
    cloud_type: str = ""
    cuda_versions: tuple[str, ...] = ()
    is_only_by_name: bool = False

    def total(self, count: int) -> float:
        """Return the price of a machine with this many GPUs in US dollars per hour."""
        return round(self.usd_per_hour * max(count, 1), 6) if self.gpu_type else self.usd_per_hour

    def is_called(self, name: str) -> bool:
        """Return whether users write this name for the GPU type. Case does not matter."""
        return name.casefold() in {known.casefold() for known in (self.gpu_type, *self.aliases)}


class OfferList(msgspec.Struct, frozen=True, omit_defaults=True):
    """All offers of one cloud. `at`: time of the prices in seconds since 1970.

    `rates`: rates of CPU and memory, None if the price of an offer is that of the whole machine.
    `machine_prices.price_offers` adds them to the price.
    """

    offers: tuple[Offer, ...]
    at: float
    rates: MachineRates | None = None

    def has_same_prices(self, other: OfferList) -> bool:
        return (self.offers, self.rates) == (other.offers, other.rates)


class OfferQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Requirements of a launch. Empty fields do not restrict.

    `gpu_count` 0 asks for a machine without GPUs. `gpu_memory` is the least GiB of each GPU.
    `gpu_types`: the types that policies allow; `gpu_type`: the type that the user asks for.
    `allowed_regions`: the regions that policies allow; `regions`: the regions that the user asks for.
    `max_usd_per_hour` is a cap on the whole machine, inclusive. `max_usd_per_gpu_hour` is a cap on each GPU.
    """

    gpu_count: int = 0
    gpu_type: str = ""
    gpu_types: tuple[str, ...] = ()
    gpu_memory: int = 0
    regions: tuple[str, ...] = ()
    allowed_regions: tuple[str, ...] = ()
    cloud_types: tuple[str, ...] = ()
    cuda_versions: tuple[str, ...] = ()
    max_usd_per_hour: float | None = None
    max_usd_per_gpu_hour: float | None = None


class RefusedOffer(msgspec.Struct, frozen=True):
    """An offer that does not fit, and the reason as a phrase such as "has 16 GiB, 24 are needed".

    `is_price`: only the price is too high, so a higher cap would take the offer.
    """

    offer: Offer
    reason: str
    is_price: bool = False


class Ranking(msgspec.Struct, frozen=True):
    """Offers that fit, best first, and those that do not."""

    candidates: tuple[Offer, ...]
    refused: tuple[RefusedOffer, ...]

    @property
    def nearest_miss(self) -> str:
        """Return why the cheapest offer that failed by its price alone was refused, or an empty string."""
        too_dear = [refused for refused in self.refused if refused.is_price]
        if not too_dear:
            return ""
        nearest = min(too_dear, key=lambda refused: (refused.offer.usd_per_hour, refused.offer.gpu_type))
        return f"{describe(nearest.offer)} {nearest.reason}"


def rank(offers: Iterable[Offer], query: OfferQuery) -> Ranking:
    """Rank by total price, then stock, then larger memory, then name, so that equal input gives equal order."""
    fitting: list[Offer] = []
    refused: list[RefusedOffer] = []
    for offer in offers:
        refusal = _refusal(offer, query)
        if refusal is None:
            fitting.append(offer)
        else:
            refused.append(refusal)
    return Ranking(tuple(sorted(fitting, key=lambda offer: _order(offer, query))), tuple(refused))


def describe(offer: Offer) -> str:
    """Return the offer as a phrase, such as `runpod NVIDIA A40 (48 GiB, SECURE, EU-RO-1)`."""
    details = [f"{offer.gpu_memory} GiB" if offer.gpu_memory else "", offer.cloud_type, offer.region]
    known = ", ".join(filter(None, details))
    name = f"{offer.provider} {offer.gpu_type or 'CPU'}"
    return f"{name} ({known})" if known else name


def _order(offer: Offer, query: OfferQuery) -> tuple[float, int, int, str, str, str, str]:
    return (
        offer.total(query.gpu_count),
        _STOCK_ORDER[offer.stock],
        -offer.gpu_memory,
        offer.provider,
        offer.gpu_type,
        offer.cloud_type,
        offer.region,
    )


def _refusal(offer: Offer, query: OfferQuery) -> RefusedOffer | None:
    reason = _mismatch(offer, query)
    if reason:
        return RefusedOffer(offer, reason)
    reason = _price_above_cap(offer, query)
    return RefusedOffer(offer, reason, is_price=True) if reason else None


def _mismatch(offer: Offer, query: OfferQuery) -> str:  # noqa: C901, PLR0911 (one return per requirement)
    if bool(offer.gpu_type) != (query.gpu_count > 0):
        return "has a GPU, none is requested" if offer.gpu_type else "has no GPU"
    if query.gpu_type and not offer.is_called(query.gpu_type):
        return f"is not {query.gpu_type}"
    if offer.is_only_by_name and not query.gpu_type:
        return "is used only if the pod names it"
    if offer.gpu_type and query.gpu_types and not any(map(offer.is_called, query.gpu_types)):
        return f"is not allowed by the OffloadPolicy, whose gpuTypes are {_listed(query.gpu_types)}"
    if offer.gpu_memory < query.gpu_memory:
        return f"has {offer.gpu_memory} GiB, {query.gpu_memory} are needed"
    if offer.gpu_type and offer.max_count < query.gpu_count:
        return f"has at most {offer.max_count} GPUs, {query.gpu_count} are needed"
    if query.regions and offer.region and offer.region not in query.regions:
        return f"is not in {' or '.join(query.regions)}"
    if query.allowed_regions and offer.region not in query.allowed_regions:
        # Refuse an offer whose region the cloud chooses: the choice may be a region that no policy allows.
        return "is in a region that the policy does not allow" if offer.region else "does not name its region"
    if query.cloud_types and offer.cloud_type and offer.cloud_type not in query.cloud_types:
        return f"is not {' or '.join(query.cloud_types)}"
    if query.cuda_versions and offer.cuda_versions and not set(query.cuda_versions) & set(offer.cuda_versions):
        return f"has CUDA {', '.join(offer.cuda_versions)}, not {' or '.join(query.cuda_versions)}"
    if offer.stock == "None":
        return "is out of stock"
    return "" if offer.usd_per_hour > 0 else "has no price"


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more


def _price_above_cap(offer: Offer, query: OfferQuery) -> str:
    total = offer.total(query.gpu_count)
    if query.max_usd_per_hour is not None and total > query.max_usd_per_hour:
        return f"costs {total:g} USD/h, above the cap of {query.max_usd_per_hour:g}"
    if query.max_usd_per_gpu_hour is not None and offer.usd_per_hour > query.max_usd_per_gpu_hour:
        return f"costs {offer.usd_per_hour:g} USD/h and GPU, above the cap of {query.max_usd_per_gpu_hour:g}"
    return ""
