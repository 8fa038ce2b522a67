"""Ranking of published offers with the age of each price, for `skysail offers`. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from skysail.base.errors import UserError
from skysail.cli import text_table
from skysail.cli.durations import age
from skysail.cloud.offers import Offer, OfferList, OfferQuery, Stock, rank

_HEADER = ("PROVIDER", "GPU", "GIB", "COUNT", "USD/H", "STOCK", "TIER", "REGION", "AGE")
_NUMBERS = ("GIB", "COUNT", "USD/H", "AGE")


class NoSuchOffer(UserError):
    """No cloud has this provider or GPU type. The message lists the known ones."""


class OfferRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One offer. `usd_per_hour` is the price of `count` GPUs. `age_seconds` is the age of the price.

    `reason`: why the offer does not fit, empty if it does.
    """

    provider: str
    gpu_type: str
    gpu_memory: int
    count: int
    usd_per_hour: float
    stock: Stock
    cloud_type: str
    region: str
    age_seconds: int
    reason: str = ""


class OfferReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Offers that fit, best first, and those that do not, cheapest first."""

    offers: tuple[OfferRow, ...]
    refused: tuple[OfferRow, ...]
    nearest_miss: str


def report(
    published: Mapping[str, OfferList], query: OfferQuery, *, providers: Collection[str], now: float
) -> OfferReport:
    """Rank the offers of these providers, or of all. Raises NoSuchOffer for an unknown provider or GPU type."""
    chosen = {name: published[name] for name in _known_providers(published, providers)}
    offers = [offer for listed in chosen.values() for offer in listed.offers]
    _check_gpu_type(offers, query.gpu_type)
    ranking = rank(offers, query)
    refused = sorted(ranking.refused, key=lambda refusal: refusal.offer.total(query.gpu_count))
    return OfferReport(
        offers=tuple(_row(offer, chosen, query, now) for offer in ranking.candidates),
        refused=tuple(_row(refusal.offer, chosen, query, now, refusal.reason) for refusal in refused),
        nearest_miss=ranking.nearest_miss,
    )


def render(result: OfferReport, *, with_refused: bool) -> list[str]:
    """Return the lines for a terminal or a file."""
    lines = text_table.render(_HEADER, [_cells(row) for row in result.offers], right=_NUMBERS)
    if not result.offers:
        lines = [f"No offer fits. {_hint(result, with_refused=with_refused)}"]
    if with_refused and result.refused:
        refused = [(*_cells(row), row.reason) for row in result.refused]
        lines += ["", *text_table.render((*_HEADER, "REFUSED BECAUSE IT"), refused, right=_NUMBERS)]
    return lines


def _hint(result: OfferReport, *, with_refused: bool) -> str:
    if result.nearest_miss:
        return f"Nearest miss: {result.nearest_miss}."
    return "Ask for less." if with_refused else "`--all` shows why each one does not."


def names(found: OfferReport) -> list[str]:
    """Return each offer that fits as provider/GPU, best first, once."""
    return list(dict.fromkeys(f"{row.provider}/{row.gpu_type or '-'}" for row in found.offers))


def _known_providers(published: Mapping[str, OfferList], providers: Collection[str]) -> tuple[str, ...]:
    for name in providers:
        if name not in published:
            raise NoSuchOffer(f"No offers of provider {name} are published: use one of {', '.join(published)}.")
    return tuple(name for name in published if not providers or name in providers)


def _check_gpu_type(offers: list[Offer], gpu_type: str) -> None:
    if gpu_type and not any(offer.is_called(gpu_type) for offer in offers if offer.gpu_type):
        names = ", ".join(sorted({offer.gpu_type for offer in offers if offer.gpu_type})) or "none"
        raise NoSuchOffer(f"No cloud offers GPU {gpu_type}. GPU types on offer: {names}.")


def _row(offer: Offer, published: Mapping[str, OfferList], query: OfferQuery, now: float, reason: str = "") -> OfferRow:
    return OfferRow(
        provider=offer.provider,
        gpu_type=offer.gpu_type,
        gpu_memory=offer.gpu_memory,
        count=max(query.gpu_count, 1) if offer.gpu_type else 0,
        usd_per_hour=offer.total(query.gpu_count),
        stock=offer.stock,
        cloud_type=offer.cloud_type,
        region=offer.region,
        age_seconds=max(0, int(now - published[offer.provider].at)),
        reason=reason,
    )


def _cells(row: OfferRow) -> tuple[str, ...]:
    return (
        row.provider,
        row.gpu_type or "-",
        str(row.gpu_memory) if row.gpu_memory else "-",
        str(row.count),
        f"{row.usd_per_hour:.2f}",
        row.stock,
        row.cloud_type or "-",
        row.region or "-",
        age(row.age_seconds),
    )
