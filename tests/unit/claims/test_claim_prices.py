"""The price in a claim, and so the reservation, includes everything that the cloud bills."""

from __future__ import annotations

import pytest

from skysail.claims.claim_specs import ClaimRequest, ClaimSpecs
from skysail.claims.plan.spending import price_of
from skysail.claims.reconciler import INDEXES
from skysail.claims.requirements.cloud_requirements import CloudRequirements
from skysail.claims.types import CLOUD_INSTANCE, CloudInstance, OwnerRef
from skysail.cloud.account import GpuRequest
from skysail.cloud.errors import Rejected
from skysail.cloud.modal.account import ModalAccount
from skysail.cloud.modal.connection import TOKEN_ID, TOKEN_SECRET
from skysail.cloud.modal.prices import PriceTable
from skysail.cloud.offers import OfferList
from skysail.cloud.provider import ResourceLimits
from skysail.kube.api.objects import Meta
from skysail.kube.cache.cache import Cache

OWNER = OwnerRef(kind="Pod", namespace="n", name="a", uid="u", container="main")
LARGE = ResourceLimits(cpu=64.0, memory=512 * 2**30)
LARGE_USD = 32 * 0.1419 + 512 * 0.024


async def reserved_usd_per_hour(**fields) -> float | None:
    account = ModalAccount({TOKEN_ID: "ak-1", TOKEN_SECRET: "as-1"}, cluster="c")
    specs = ClaimSpecs(account, Cache(CLOUD_INSTANCE.resource, CloudInstance, INDEXES))

    async def offers() -> OfferList:
        return PriceTable().offers()

    specs.offers = offers
    spec = await specs.build(ClaimRequest(owner=OWNER, launch=0, requirements=CloudRequirements(**fields)))
    return price_of(CloudInstance(metadata=Meta(name="claim-1"), spec=spec))


@pytest.mark.parametrize(
    ("fields", "usd"),
    [
        ({}, 4 * 0.1419 + 16 * 0.024),
        ({"size": LARGE}, LARGE_USD),
        ({"size": LARGE, "gpus": GpuRequest("H100", 8)}, 8 * 3.95 + LARGE_USD),
        ({"size": LARGE, "options": (("modal-region", "us-east"),)}, 1.75 * LARGE_USD),
    ],
)
async def test_a_claim_at_modal_has_the_price_of_cpu_memory_and_region(fields, usd):
    assert await reserved_usd_per_hour(**fields) == pytest.approx(usd, abs=1e-6)


async def test_cpu_and_memory_above_the_cap_are_rejected_before_a_claim_is_written():
    with pytest.raises(Rejected, match="above the cap of 1"):
        await reserved_usd_per_hour(size=LARGE, max_usd_per_hour=1.0)


async def test_an_unknown_region_is_rejected_before_a_claim_is_written():
    with pytest.raises(Rejected, match="atlantis"):
        await reserved_usd_per_hour(options=(("modal-region", "atlantis"),))
