"""Candidates of a claim: the offers of its provider that fit, best first, and why the others do not. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from skysail.base.names import Reason
from skysail.claims.types import Candidate
from skysail.cloud.offers import Offer, OfferQuery, Ranking, describe, rank

_MAX_CANDIDATES = 64
_MAX_NAME_LENGTH = 256
_MAX_NAMES = 12
_MAX_REFUSALS = 4
_MAX_MESSAGE_LENGTH = 1024


class Selection(msgspec.Struct, frozen=True):
    """Candidates for a claim. `reason` and `message` say why there is none, and are empty otherwise."""

    candidates: tuple[Candidate, ...]
    nearest_miss: str = ""
    reason: str = ""
    message: str = ""


def select(provider: str, offers: Iterable[Offer], query: OfferQuery) -> Selection:
    """Rank the offers of one provider. An offer whose names do not fit into a claim does not count."""
    listed = tuple(offer for offer in offers if _has_usable_names(offer))
    ranking = rank(listed, query)
    nearest_miss = ranking.nearest_miss[:_MAX_MESSAGE_LENGTH]
    if ranking.candidates:
        chosen = ranking.candidates[:_MAX_CANDIDATES]
        return Selection(tuple(_candidate(offer, query) for offer in chosen), nearest_miss)
    if query.gpu_type and not any(offer.is_called(query.gpu_type) for offer in listed if offer.gpu_type):
        return Selection((), reason=Reason.UNKNOWN_GPU, message=_unknown_gpu(provider, listed, query))
    return Selection((), nearest_miss, Reason.NO_MATCHING_OFFER, _nothing_fits(provider, query, ranking, nearest_miss))


def _has_usable_names(offer: Offer) -> bool:
    return all(len(name) <= _MAX_NAME_LENGTH for name in (offer.gpu_type, offer.region, offer.cloud_type))


def _candidate(offer: Offer, query: OfferQuery) -> Candidate:
    return Candidate(
        gpu_type=offer.gpu_type,
        region=offer.region,
        cloud_type=offer.cloud_type,
        usd_per_hour=offer.total(query.gpu_count),
    )


def _unknown_gpu(provider: str, offers: tuple[Offer, ...], query: OfferQuery) -> str:
    names = sorted({offer.gpu_type for offer in offers if offer.gpu_type})
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    known = f"ask for one of {', '.join(names[:_MAX_NAMES])}{more}." if names else "it offers no GPUs now."
    return f"{provider} has no GPU {query.gpu_type}: {known}"[:_MAX_MESSAGE_LENGTH]


def _nothing_fits(provider: str, query: OfferQuery, ranking: Ranking, nearest_miss: str) -> str:
    """Name the offers with the requested kind of machine: that another one has no GPU, or another GPU, helps no user.

    At least one offer has the requested GPU type, otherwise the GPU is unknown.
    """
    if nearest_miss:
        return f"No offer of {provider} fits. Nearest miss: {nearest_miss}. Raise the cap, or wait for a lower price."
    parts = [
        f"{describe(refused.offer)} {refused.reason}"
        for refused in ranking.refused
        if refused.reason not in {"has no GPU", "has a GPU, none is requested"}
        and (not query.gpu_type or refused.offer.is_called(query.gpu_type))
    ]
    more = f" and {len(parts) - _MAX_REFUSALS} more" if len(parts) > _MAX_REFUSALS else ""
    reasons = f": {'; '.join(parts[:_MAX_REFUSALS])}{more}" if parts else ""
    return f"No offer of {provider} fits{reasons}. Change the requirements of the pod."[:_MAX_MESSAGE_LENGTH]
