from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from skysail.cloud.offers import Offer, OfferQuery, describe, rank

A40 = Offer(
    provider="runpod", gpu_type="NVIDIA A40", aliases=("A40",), gpu_memory=48, usd_per_hour=0.44, cloud_type="SECURE"
)
L4 = Offer(provider="modal", gpu_type="L4", gpu_memory=24, usd_per_hour=0.8, stock="High", region="us")
T4 = Offer(provider="modal", gpu_type="T4", gpu_memory=16, usd_per_hour=0.59, stock="Low", max_count=4)
CPU = Offer(provider="modal", usd_per_hour=0.1)
OFFERS = (L4, CPU, T4, A40)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (OfferQuery(), [CPU]),
        (OfferQuery(gpu_count=1), [A40, T4, L4]),
        (OfferQuery(gpu_count=1, gpu_type="a40"), [A40]),
        (OfferQuery(gpu_count=1, gpu_types=("T4", "L4")), [T4, L4]),
        (OfferQuery(gpu_count=1, gpu_memory=24), [A40, L4]),
        (OfferQuery(gpu_count=5), [A40, L4]),
        (OfferQuery(gpu_count=1, regions=("eu",)), [A40, T4]),
        (OfferQuery(gpu_count=1, cloud_types=("COMMUNITY",)), [T4, L4]),
        (OfferQuery(gpu_count=2, max_usd_per_hour=1.18), [A40, T4]),
        (OfferQuery(gpu_count=2, max_usd_per_gpu_hour=0.5), [A40]),
    ],
)
def test_rank_orders_fitting_offers_by_price(query, expected):
    assert list(rank(OFFERS, query).candidates) == expected


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        (OfferQuery(), "has a GPU, none is requested"),
        (OfferQuery(gpu_count=1, gpu_type="T4"), "is not T4"),
        (OfferQuery(gpu_count=1, gpu_types=("T4",)), "is not allowed by the OffloadPolicy, whose gpuTypes are T4"),
        (OfferQuery(gpu_count=1, gpu_memory=80), "has 48 GiB, 80 are needed"),
        (OfferQuery(gpu_count=9), "has at most 8 GPUs, 9 are needed"),
        (OfferQuery(gpu_count=1, cloud_types=("COMMUNITY",)), "is not COMMUNITY"),
        (OfferQuery(gpu_count=1, max_usd_per_hour=0.4), "costs 0.44 USD/h, above the cap of 0.4"),
    ],
)
def test_rank_offer_that_does_not_fit_names_the_reason(query, reason):
    assert {refused.offer.gpu_type: refused.reason for refused in rank([A40], query).refused} == {"NVIDIA A40": reason}


def test_rank_offer_out_of_stock_is_refused():
    gone = Offer(provider="runpod", gpu_type="T4", gpu_memory=16, usd_per_hour=0.1, stock="None")
    assert rank([gone], OfferQuery(gpu_count=1)).refused[0].reason == "is out of stock"


@pytest.mark.parametrize(
    ("offered", "asked", "reason"),
    [
        (("12.4",), ("12.4",), ""),
        (("12.4", "12.8"), ("12.1", "12.8"), ""),
        ((), ("12.4",), ""),
        (("12.4",), (), ""),
        (("12.4",), ("12.8",), "has CUDA 12.4, not 12.8"),
        (("12.1", "12.4"), ("12.6", "12.8"), "has CUDA 12.1, 12.4, not 12.6 or 12.8"),
    ],
)
def test_rank_offer_fits_if_it_has_one_of_the_cuda_versions(offered, asked, reason):
    ranking = rank([replace(A40, cuda_versions=offered)], OfferQuery(gpu_count=1, cuda_versions=asked))
    assert [refused.reason for refused in ranking.refused] == ([reason] if reason else [])
    assert len(ranking.candidates) == (not reason)


@pytest.mark.parametrize(
    ("regions", "reason"),
    [(("us",), ""), (("eu", "us"), ""), (("eu",), "is not in eu"), (("eu", "asia"), "is not in eu or asia")],
)
def test_rank_offer_outside_the_regions_names_them(regions, reason):
    ranking = rank([L4], OfferQuery(gpu_count=1, regions=regions))
    assert [refused.reason for refused in ranking.refused] == ([reason] if reason else [])


@pytest.mark.parametrize("price", [0.0, -1.0])
def test_rank_offer_without_a_price_is_refused(price):
    (refused,) = rank([replace(A40, usd_per_hour=price)], OfferQuery(gpu_count=1)).refused
    assert (refused.reason, refused.is_price) == ("has no price", False)


def test_rank_prefers_better_stock_then_memory_at_the_same_price():
    low = Offer(provider="a", gpu_type="x", gpu_memory=24, usd_per_hour=1.0, stock="Low")
    high = Offer(provider="b", gpu_type="y", gpu_memory=16, usd_per_hour=1.0, stock="High")
    large = Offer(provider="c", gpu_type="z", gpu_memory=80, usd_per_hour=1.0, stock="High")
    assert rank([low, high, large], OfferQuery(gpu_count=1)).candidates == (large, high, low)


def test_nearest_miss_names_the_cheapest_offer_above_the_cap():
    ranking = rank(OFFERS, OfferQuery(gpu_count=1, max_usd_per_hour=0.3))
    assert ranking.nearest_miss == "runpod NVIDIA A40 (48 GiB, SECURE) costs 0.44 USD/h, above the cap of 0.3"


def test_nearest_miss_without_an_offer_that_only_costs_too_much_is_empty():
    assert rank(OFFERS, OfferQuery(gpu_count=1, gpu_type="H100")).nearest_miss == ""


def test_describe_offer_without_details_names_provider_and_type():
    assert describe(CPU) == "modal CPU"


@given(st.lists(st.sampled_from(OFFERS), max_size=8), st.integers(0, 9), st.one_of(st.none(), st.floats(0.0, 10.0)))
def test_rank_keeps_every_offer_and_its_order_does_not_depend_on_the_input(offers, count, cap):
    query = OfferQuery(gpu_count=count, max_usd_per_hour=cap)
    ranking = rank(offers, query)
    assert len(ranking.candidates) + len(ranking.refused) == len(offers)
    assert ranking.candidates == rank(reversed(offers), query).candidates
    assert all(cap is None or offer.total(count) <= cap for offer in ranking.candidates)
