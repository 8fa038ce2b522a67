"""Candidates of a claim: which offers fit, in which order, and what is said if there is none."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skysail.base.names import Reason
from skysail.claims.requirements.candidates import Selection, select
from skysail.claims.types import Candidate
from skysail.cloud.offers import Offer, OfferQuery
from tests.unit.claims.samples import CLOUD, OFFERS


def types(selection: Selection) -> list[str]:
    return [candidate.gpu_type for candidate in selection.candidates]


@pytest.mark.parametrize(
    ("query", "want"),
    [
        (OfferQuery(), [""]),
        (OfferQuery(gpu_count=1), ["T4", "L4", "H100"]),
        (OfferQuery(gpu_count=1, gpu_type="h100"), ["H100"]),
        (OfferQuery(gpu_count=1, gpu_memory=24), ["L4", "H100"]),
        (OfferQuery(gpu_count=1, gpu_types=("H100", "T4")), ["T4", "H100"]),
        (OfferQuery(gpu_count=1, regions=("us",)), ["H100"]),
        (OfferQuery(gpu_count=1, regions=("us", "eu"), allowed_regions=("eu",)), ["T4", "L4"]),
        (OfferQuery(gpu_count=2, max_usd_per_hour=1.6), ["T4", "L4"]),
        (OfferQuery(gpu_count=2, max_usd_per_gpu_hour=0.5), ["T4"]),
    ],
)
def test_select_offers_that_fit_orders_them_by_price(query, want):
    assert types(select(CLOUD, OFFERS, query)) == want


def test_select_candidate_has_the_price_of_all_gpus_and_the_place_of_its_offer():
    (candidate,) = select(CLOUD, OFFERS, OfferQuery(gpu_count=2, gpu_type="T4")).candidates
    assert candidate == Candidate(gpu_type="T4", region="eu", usd_per_hour=1.0)


def test_select_region_restricted_by_policy_refuses_offers_whose_region_the_cloud_chooses():
    anywhere = Offer(provider=CLOUD, gpu_type="T4", usd_per_hour=0.5)
    selection = select(CLOUD, (anywhere,), OfferQuery(gpu_count=1, allowed_regions=("eu",)))
    assert (selection.candidates, selection.reason) == ((), Reason.NO_MATCHING_OFFER)
    assert "does not name its region" in selection.message


@pytest.mark.parametrize(
    ("query", "reason", "words"),
    [
        (OfferQuery(gpu_count=1, gpu_type="B200"), Reason.UNKNOWN_GPU,
         "cloud has no GPU B200: ask for one of H100, L4, T4."),
        (OfferQuery(gpu_count=1, max_usd_per_hour=0.4), Reason.NO_MATCHING_OFFER,
         "Nearest miss: cloud T4 (16 GiB, eu) costs 0.5 USD/h, above the cap of 0.4"),
        (OfferQuery(gpu_count=1, gpu_memory=96), Reason.NO_MATCHING_OFFER, "has 80 GiB, 96 are needed"),
        (OfferQuery(gpu_count=16), Reason.NO_MATCHING_OFFER, "has at most 8 GPUs, 16 are needed"),
    ],
)  # fmt: skip
def test_select_nothing_fits_says_why(query, reason, words):
    selection = select(CLOUD, OFFERS, query)
    assert (selection.candidates, selection.reason) == ((), reason)
    assert words in selection.message


CHEAP_TYPES = tuple(
    Offer(provider=CLOUD, gpu_type=f"A{number}", usd_per_hour=number / 10, region="eu") for number in range(1, 9)
)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (
            OfferQuery(gpu_count=1, gpu_type="H100", gpu_types=("T4",)),
            "cloud H100 (80 GiB, us) is not allowed by the OffloadPolicy, whose gpuTypes are T4.",
        ),
        (OfferQuery(gpu_count=999, gpu_type="H100"), "cloud H100 (80 GiB, us) has at most 8 GPUs, 999 are needed."),
    ],
)
def test_select_requested_type_does_not_fit_names_its_offers_and_no_other_types(query, words):
    message = select(CLOUD, (*CHEAP_TYPES, *OFFERS), query).message
    assert message == f"No offer of cloud fits: {words} Change the requirements of the pod."


def test_select_some_too_dear_names_the_nearest_miss():
    selection = select(CLOUD, OFFERS, OfferQuery(gpu_count=1, max_usd_per_hour=0.6))
    assert types(selection) == ["T4"]
    assert selection.nearest_miss.startswith("cloud L4")


@given(
    st.lists(
        st.builds(
            Offer,
            provider=st.just(CLOUD),
            gpu_type=st.sampled_from(["", "A", "B"]),
            gpu_memory=st.integers(0, 80),
            usd_per_hour=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
            stock=st.sampled_from(["High", "None", "Unknown"]),
            region=st.text("é", max_size=900),
        ),
        max_size=80,
    ),
    st.builds(
        OfferQuery,
        gpu_count=st.integers(0, 2),
        gpu_type=st.sampled_from(["", "A", "C"]),
        gpu_memory=st.integers(0, 80),
    ),
)
def test_select_any_offers_gives_candidates_or_a_reason_of_bounded_size(offers, query):
    selection = select(CLOUD, offers, query)
    assert bool(selection.candidates) != bool(selection.reason)
    assert len(selection.candidates) <= 64
    assert max(len(selection.message), len(selection.nearest_miss)) <= 1024
    assert [candidate.usd_per_hour for candidate in selection.candidates] == sorted(
        candidate.usd_per_hour for candidate in selection.candidates
    )
    for candidate in selection.candidates:
        assert candidate.usd_per_hour > 0
        assert msgspec.convert(msgspec.to_builtins(candidate), Candidate) == candidate
