"""Offers of all clouds: polled every five minutes, sooner after a failure, and kept while a cloud does not answer."""

from __future__ import annotations

import asyncio

import pytest

from skysail.claims.tracking.offer_catalogue import OfferCatalogue
from skysail.cloud.errors import OutcomeUnknown, Throttled
from skysail.cloud.offers import OfferList
from tests.support import virtual_time
from tests.unit.claims.samples import CLOUD, NOW, OFFERS, ScriptedCloud

LISTED = OfferList(OFFERS, NOW.timestamp())


async def after(catalogue: OfferCatalogue, seconds: float) -> None:
    task = asyncio.create_task(catalogue.run())
    await asyncio.sleep(seconds)
    task.cancel()
    await asyncio.wait([task])


def test_catalogue_polled_holds_the_offers():
    async def test() -> None:
        cloud = ScriptedCloud()
        catalogue = OfferCatalogue({CLOUD: cloud})
        assert catalogue.current() == {}
        await after(catalogue, 299)
        assert (dict(catalogue.current()), cloud.offer_polls) == ({CLOUD: LISTED}, 1)
        await after(catalogue, 601)
        assert cloud.offer_polls == 4

    virtual_time.run(test())


@pytest.mark.parametrize("failure", [OutcomeUnknown("down"), Throttled("slow", 9.0), None, ValueError("defect")])
def test_catalogue_poll_failed_keeps_the_old_list_and_polls_sooner(failure):
    async def test() -> None:
        cloud = ScriptedCloud()
        catalogue = OfferCatalogue({CLOUD: cloud})
        await catalogue.poll(CLOUD)
        cloud.offered = failure
        await after(catalogue, 100)
        assert (dict(catalogue.current()), cloud.offer_polls >= 3) == ({CLOUD: LISTED}, True)

    virtual_time.run(test())


def test_catalogue_one_cloud_silent_does_not_delay_the_others():
    async def test() -> None:
        silent, cloud = ScriptedCloud(), ScriptedCloud()
        silent.offered = None
        catalogue = OfferCatalogue({"silent": silent, CLOUD: cloud})
        await after(catalogue, 1)
        assert list(catalogue.current()) == [CLOUD]

    virtual_time.run(test())


def test_find_unknown_offers_polls_once_for_all_callers():
    async def test() -> None:
        cloud = ScriptedCloud()
        catalogue = OfferCatalogue({CLOUD: cloud})
        assert await catalogue.find(CLOUD) == LISTED
        assert await catalogue.find(CLOUD) == LISTED
        assert cloud.offer_polls == 1
        assert await catalogue.find("elsewhere") is None

    virtual_time.run(test())


def test_find_cloud_down_returns_none():
    async def test() -> None:
        cloud = ScriptedCloud()
        cloud.offered = OutcomeUnknown("down")
        assert await OfferCatalogue({CLOUD: cloud}).find(CLOUD) is None

    virtual_time.run(test())


def test_on_change_prices_changed_enqueues_and_a_newer_time_alone_does_not():
    async def test() -> None:
        cloud, changes = ScriptedCloud(), []
        catalogue = OfferCatalogue({CLOUD: cloud})
        catalogue.on_change(lambda: changes.append(1))
        await catalogue.poll(CLOUD)
        cloud.offered = OfferList(OFFERS, NOW.timestamp() + 300)
        await catalogue.poll(CLOUD)
        assert (len(changes), catalogue.current()[CLOUD].at) == (1, NOW.timestamp() + 300)
        cloud.offered = OfferList(OFFERS[1:], NOW.timestamp() + 600)
        await catalogue.poll(CLOUD)
        assert len(changes) == 2

    virtual_time.run(test())
