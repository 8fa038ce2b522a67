"""Prices that depend on the CPU and memory of a machine.

An account implements `MachinePricing` in addition to `CloudAccount` if its cloud bills CPU, memory or a region that an
option names. Offers of other clouds have the price of the whole machine.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import msgspec

from skysail.cloud.offers import Offer
from skysail.cloud.provider import ResourceLimits


class MachineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Size of a machine: GPUs, CPU and memory, and the options of its launch."""

    gpu_count: int = 0
    size: ResourceLimits = ResourceLimits()
    options: tuple[tuple[str, str], ...] = ()


@runtime_checkable
class MachinePricing(Protocol):
    """An account whose cloud bills by the size of a machine."""

    def price_offers(self, offers: tuple[Offer, ...], request: MachineRequest) -> tuple[Offer, ...]:
        """Return the offers with the highest price of a machine of this size, without those that are too small.

        The price of an offer with GPUs stays the price of one GPU, with its share of CPU and memory.
        Raises Rejected if an option names an unknown region.
        """
        ...


def price_offers(account: object, offers: tuple[Offer, ...], request: MachineRequest) -> tuple[Offer, ...]:
    """Return the offers of an account at the price of a machine of this size."""
    return account.price_offers(offers, request) if isinstance(account, MachinePricing) else offers
