"""What follows from a cloud's listings for each claim: present, absent or unknown."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from skysail.claims.snapshot import NotObserved, Observed
from skysail.cloud.account import Inventory
from skysail.cloud.errors import OutcomeUnknown, Throttled
from tests.support import virtual_time
from tests.unit.claims.samples import (
    NAME,
    NOW,
    TERMS,
    Watch,
    claim,
    exited,
    instance,
    moved,
    spec,
)

DOUBTED = claim("Unknown", nonce="theirs")
RUNNING = claim("Running")


def run_virtual(test) -> None:
    virtual_time.run(test())


def test_before_the_first_listing_everything_is_unknown():
    async def test() -> None:
        desk = Watch()
        desk.knows(DOUBTED)
        assert desk.sight() == NotObserved()
        assert "not listed" in desk.listings.outage

    run_virtual(test)


def test_what_is_listed_is_seen_the_oldest_first():
    async def test() -> None:
        young, old, older = instance("b"), instance("a"), instance("z", created=NOW.timestamp() - 99)
        desk = Watch(young, old, older)
        desk.knows(DOUBTED)
        await desk.poll()
        assert desk.sight() == Observed((older, old, young))
        assert (desk.woken, desk.listings.outage) == ([NAME], "")

    run_virtual(test)


def test_no_news_wakes_nobody():
    async def test() -> None:
        desk = Watch(instance())
        desk.knows(RUNNING)
        await desk.poll(5)
        assert desk.woken == [NAME]

    run_virtual(test)


def test_absence_is_counted_from_the_first_listing_to_the_last():
    async def test() -> None:
        desk = Watch()
        desk.knows(DOUBTED)
        await desk.poll(3, every=40.0)
        seconds = desk.sight().seconds
        assert desk.sight().listings == 3
        assert seconds == pytest.approx(80.2)

    run_virtual(test)


def test_many_listings_in_one_second_do_not_make_a_long_absence():
    async def test() -> None:
        desk = Watch()
        desk.knows(DOUBTED)
        await desk.poll(9, every=0.001)
        assert desk.sight().listings == 9
        assert desk.sight().seconds < 1

    run_virtual(test)


def test_a_listing_that_was_begun_before_the_last_write_says_nothing_of_absence():
    async def test() -> None:
        desk = Watch()
        desk.knows(DOUBTED)
        await desk.poll(3)
        under_way = asyncio.create_task(desk.listings.poll())
        await asyncio.sleep(0.05)
        desk.listings.claim_changed(DOUBTED, moved(DOUBTED))
        await under_way
        assert desk.sight() == NotObserved()
        await desk.poll()
        assert desk.sight() == NotObserved(listings=1)

    run_virtual(test)


def test_a_sight_starts_the_count_anew():
    async def test() -> None:
        desk = Watch()
        desk.knows(DOUBTED)
        await desk.poll(5)
        desk.cloud.instances = [instance()]
        await desk.poll()
        desk.cloud.instances = []
        await desk.poll()
        assert desk.sight() == NotObserved(listings=1, before=(instance(),))

    run_virtual(test)


@pytest.mark.parametrize("trouble", [OutcomeUnknown("lost"), Throttled("slow", 9.0), Inventory((), complete=False)])
def test_a_listing_that_failed_or_is_not_whole_shows_no_absence(trouble):
    async def test() -> None:
        desk = Watch()
        desk.knows(DOUBTED)
        desk.cloud.listing = trouble
        await desk.poll(20)
        assert desk.sight() == NotObserved()
        assert desk.listings.outage
        assert desk.listings.latest is None

    run_virtual(test)


def test_a_listing_that_is_not_whole_still_shows_what_is_there():
    async def test() -> None:
        desk = Watch()
        desk.knows(DOUBTED)
        desk.cloud.listing = Inventory((instance(),), complete=False)
        await desk.poll()
        assert desk.sight() == Observed((instance(),))

    run_virtual(test)


@pytest.mark.parametrize("unreadable", [NAME, RUNNING.status.instance_id], ids=["claim", "instance"])
def test_instance_that_cannot_be_read_is_neither_absent_nor_an_outage(unreadable):
    async def test() -> None:
        desk = Watch()
        desk.knows(RUNNING)
        desk.cloud.listing = Inventory((), unreadable=frozenset({unreadable}))
        await desk.poll(5)
        assert desk.sight() == NotObserved()
        assert desk.listings.outage == ""
        desk.cloud.listing = Inventory(())
        await desk.poll()
        assert desk.sight() == NotObserved(listings=1)

    run_virtual(test)


def test_the_outage_says_why_a_listing_is_not_whole():
    async def test() -> None:
        desk = Watch()
        desk.cloud.listing = Inventory((), complete=False, problem="The key is of another account: set another.")
        await desk.poll()
        assert desk.listings.outage == "The key is of another account: set another."

    run_virtual(test)


def test_an_empty_listing_is_contradicted_by_the_page_of_an_instance():
    async def test() -> None:
        desk = Watch(instance("i-7", claim="b"))
        running = claim("Running", metadata={"name": "b"}, instance_id="i-7")
        desk.knows(running, DOUBTED)
        desk.cloud.listing = Inventory(())
        await desk.poll(20)
        assert desk.sight() == NotObserved()
        assert "instance i-7 exists" in desk.listings.outage

    run_virtual(test)


def test_one_that_just_ended_does_not_vouch_for_an_empty_listing():
    async def test() -> None:
        desk = Watch(instance("i-1", "ended", claim="a"), instance("i-7", claim="b"))
        first = claim("Running", metadata={"name": "a"}, instance_id="i-1")
        second = claim("Running", metadata={"name": "b"}, instance_id="i-7")
        desk.knows(first, second, DOUBTED)
        desk.cloud.listing = Inventory(())
        await desk.poll(20)
        assert desk.sight() == NotObserved()
        assert desk.listings.outage

    run_virtual(test)


def test_an_empty_listing_that_nothing_contradicts_is_believed():
    async def test() -> None:
        desk = Watch()
        desk.knows(RUNNING)
        await desk.poll(2)
        assert desk.sight().listings == 2
        assert desk.listings.outage == ""

    run_virtual(test)


def test_a_page_of_somebody_else_contradicts_nothing():
    async def test() -> None:
        desk = Watch()
        desk.knows(RUNNING)
        desk.cloud.pages["i-1"] = instance(cluster="cluster-2")
        await desk.poll()
        assert desk.listings.outage == ""

    run_virtual(test)


@pytest.mark.parametrize("strange", [{"cluster": "cluster-2"}, {"claim": ""}, {"claim": "b"}, {"cluster": ""}])
def test_what_is_not_ours_is_not_seen(strange):
    async def test() -> None:
        desk = Watch(instance(**strange))
        desk.knows(DOUBTED)
        await desk.poll(2)
        desk.listings.record_instance(instance(**strange))
        assert desk.sight().listings == 2

    run_virtual(test)


def test_that_a_double_ended_says_nothing_of_the_instance_that_we_know():
    async def test() -> None:
        desk = Watch(instance("i-2", "ended"), instance("i-3", claim="b"))
        desk.knows(RUNNING)
        await desk.poll(2)
        assert desk.sight().listings == 2

    run_virtual(test)


@pytest.mark.parametrize("state", ["starting", "ended"])
def test_a_double_does_not_stand_for_the_instance_that_we_know(state):
    async def test() -> None:
        double = instance("i-2", state)
        desk = Watch(double)
        desk.knows(RUNNING)
        await desk.poll(2)
        assert desk.sight() == NotObserved(listings=2, seconds=desk.sight().seconds, others=(double,))
        desk.cloud.instances = [instance(), double]
        await desk.poll()
        assert desk.sight() == Observed((instance(), double))

    run_virtual(test)


def test_a_double_in_a_part_of_a_listing_does_not_hide_what_was_seen():
    async def test() -> None:
        desk = Watch(instance())
        desk.knows(RUNNING)
        await desk.poll()
        desk.cloud.listing = Inventory((instance("i-2"),), complete=False)
        await desk.poll()
        assert desk.sight() == Observed((instance(), instance("i-2")))

    run_virtual(test)


def test_what_was_last_seen_stays_known_while_only_doubles_are_seen():
    async def test() -> None:
        desk = Watch(instance(exit=exited(3)))
        desk.knows(RUNNING)
        await desk.poll()
        desk.cloud.instances = [instance("i-2", "ended")]
        await desk.poll(3)
        assert desk.sight().before == (instance(exit=exited(3)),)

    run_virtual(test)


@pytest.mark.parametrize("id_", ["", "i" * 257])
def test_an_id_that_cannot_be_written_down_is_an_outage_and_no_absence(id_):
    async def test() -> None:
        desk = Watch(instance(id_))
        desk.knows(DOUBTED)
        await desk.poll(20)
        assert desk.sight() == NotObserved()
        assert "too long ID" in desk.listings.outage
        desk.cloud.instances = [instance(id_, cluster="cluster-2")]
        await desk.poll()
        assert desk.listings.outage == ""

    run_virtual(test)


def test_the_page_is_asked_for_only_after_long_absence():
    async def test() -> None:
        desk = beside_another()
        await desk.poll(2, every=TERMS.visibility_delay)
        assert (desk.sight().is_gone, desk.cloud.looks) == (False, [])
        desk.woken.clear()
        await desk.poll()
        assert (desk.sight().is_gone, desk.cloud.looks) == (True, ["i-1"])
        assert desk.woken == [NAME, NAME]

    run_virtual(test)


@pytest.mark.parametrize(
    ("page", "sight"),
    [
        (instance("i-1", "ended"), Observed((instance("i-1", "ended"),))),
        (instance("i-1"), Observed((instance("i-1"),))),
        (instance("i-2"), None),
        (instance("i-1", claim="another"), None),
        (instance("i-1", cluster="cluster-2"), None),
        (OutcomeUnknown("lost"), None),
    ],
)
def test_a_page_is_believed_where_it_is_of_this_claim(page, sight):
    async def test() -> None:
        desk = beside_another()
        desk.cloud.pages["i-1"] = page
        await desk.poll(3, every=TERMS.visibility_delay)
        found = desk.sight()
        assert found == (sight or NotObserved(listings=3, seconds=found.seconds))

    run_virtual(test)


@pytest.mark.parametrize("later", [instance("i-1"), OutcomeUnknown("lost")])
def test_the_last_word_of_a_page_counts(later):
    async def test() -> None:
        desk = beside_another()
        await desk.poll(3, every=TERMS.visibility_delay)
        desk.cloud.pages["i-1"] = later
        await desk.poll()
        assert isinstance(desk.sight(), Observed) or not desk.sight().is_gone
        desk.cloud.pages["i-1"] = OutcomeUnknown("lost")
        await desk.poll()
        assert not desk.sight().is_gone

    run_virtual(test)


def test_who_has_no_instance_has_no_page():
    async def test() -> None:
        desk = Watch()
        desk.knows(DOUBTED)
        await desk.poll(3, every=TERMS.visibility_delay)
        assert (desk.sight().is_gone, desk.cloud.looks) == (False, [])

    run_virtual(test)


def beside_another() -> Watch:
    """Ours is not listed, and another one of ours is: no listing is contradicted."""
    desk = Watch(instance("i-7", claim="b"))
    desk.knows(RUNNING, claim("Running", metadata={"name": "b"}, instance_id="i-7"))
    return desk


def test_an_answer_to_a_call_is_newer_than_a_listing_under_way():
    async def test() -> None:
        desk = Watch()
        desk.knows(DOUBTED)
        under_way = asyncio.create_task(desk.listings.poll())
        await asyncio.sleep(0.05)
        desk.listings.record_instance(instance())
        await under_way
        assert desk.sight() == Observed((instance(),))
        await desk.poll()
        assert desk.sight() == NotObserved(listings=1, before=(instance(),))

    run_virtual(test)


def test_an_old_listing_does_not_take_back_what_was_seen_since():
    async def test() -> None:
        desk = Watch(instance("i-1", "starting"))
        desk.knows(claim("Starting"))
        under_way = asyncio.create_task(desk.listings.poll())
        await asyncio.sleep(0.05)
        desk.listings.record_instance(instance("i-1", "running"))
        await under_way
        assert desk.sight() == Observed((instance("i-1", "running"),))

    run_virtual(test)


def test_an_answer_about_one_keeps_its_double_in_sight():
    async def test() -> None:
        desk = Watch(instance("i-1"), instance("i-2"))
        desk.knows(RUNNING)
        await desk.poll()
        desk.listings.record_instance(instance("i-1", "ended"))
        assert [(row.id, row.state) for row in desk.sight().instances] == [("i-1", "ended"), ("i-2", "running")]

    run_virtual(test)


def test_a_claim_that_is_gone_is_forgotten():
    async def test() -> None:
        desk = Watch(instance())
        desk.knows(RUNNING)
        await desk.poll()
        desk.listings.claim_changed(RUNNING, None)
        await desk.poll()
        assert desk.sight() == NotObserved()

    run_virtual(test)


def test_claims_of_other_clouds_are_none_of_our_business():
    async def test() -> None:
        desk = Watch(instance())
        desk.knows(claim("Unknown", of=spec(provider="elsewhere")))
        await desk.poll()
        assert (desk.sight(), desk.woken) == (NotObserved(), [])

    run_virtual(test)


def test_recovery_wakes_who_waits_for_it_and_nobody_else():
    async def test() -> None:
        desk = Watch()
        desk.cloud.listing = OutcomeUnknown("down")
        desk.knows(claim("Claimed", metadata={"name": "a"}), claim("Terminated", metadata={"name": "b"}))
        await desk.poll(3)
        assert desk.woken == []
        desk.cloud.listing = None
        await desk.poll(3)
        assert (desk.woken, desk.listings.outage) == (["a"], "")

    run_virtual(test)


def test_an_outage_has_one_sentence_however_often_it_is_told_anew():
    async def test() -> None:
        desk = Watch()
        told = set()
        for number in range(3):
            desk.cloud.listing = OutcomeUnknown(f"request {number} failed")
            await desk.poll()
            told.add(desk.listings.outage)
        assert len(told) == 1
        assert "request 0 failed" in told.pop()

    run_virtual(test)


@asynccontextmanager
async def running(desk: Watch):
    task = asyncio.create_task(desk.listings.run())
    await asyncio.sleep(1)
    yield
    task.cancel()
    await asyncio.wait([task])


def test_a_cloud_that_does_not_answer_is_an_outage():
    async def test() -> None:
        desk = Watch()
        desk.knows(DOUBTED)
        async with running(desk):
            desk.cloud.is_silent = True
            await asyncio.sleep(60)
            assert "no answer in 30 seconds" in desk.listings.outage
            desk.cloud.is_silent = False
            await asyncio.sleep(60)
            assert desk.listings.outage == ""

    run_virtual(test)


def test_a_page_that_is_not_answered_does_not_stop_the_listings():
    async def test() -> None:
        desk = beside_another()
        await desk.poll(3, every=TERMS.visibility_delay)
        desk.cloud.pages["i-1"] = None
        look = desk.cloud.get
        desk.cloud.get = lambda _: asyncio.Event().wait()
        await desk.poll()
        assert (desk.sight().is_gone, desk.listings.outage) == (False, "")
        desk.cloud.get = look
        await desk.poll()
        assert desk.sight().is_gone

    run_virtual(test)


def test_a_mistake_in_a_cloud_s_code_is_an_outage_and_is_logged(caplog):
    async def test() -> None:
        desk = Watch()
        desk.knows(DOUBTED)
        async with running(desk):
            desk.cloud.told.put_nowait(ZeroDivisionError("in changes"))
            desk.cloud.listing = ZeroDivisionError("in a listing")
            await asyncio.sleep(10)
            assert "see the operator log" in desk.listings.outage
            desk.cloud.listing = None
            await asyncio.sleep(10)
            assert desk.listings.outage == ""

    run_virtual(test)
    assert "in changes" in caplog.text
    assert "in a listing" in caplog.text


def test_what_the_cloud_itself_tells_is_looked_at_at_once_by_id():
    async def test() -> None:
        desk = Watch(instance("i-1", "running"))
        desk.knows(RUNNING)
        async with running(desk):
            desk.cloud.instances = [instance("i-1", "ended")]
            desk.cloud.told.put_nowait(NAME)
            desk.cloud.told.put_nowait("a stranger")
            await asyncio.sleep(0.5)
            assert desk.sight() == Observed((instance("i-1", "ended"),))
            assert desk.cloud.looks == ["i-1"]

    run_virtual(test)


def test_a_cloud_that_stops_telling_is_polled_on_and_asked_to_tell_again():
    async def test() -> None:
        desk = Watch()
        desk.knows(RUNNING)
        async with running(desk):
            desk.cloud.told.put_nowait(OutcomeUnknown("the stream broke"))
            await asyncio.sleep(4)
            desk.cloud.instances = [instance("i-1", "starting")]
            await asyncio.sleep(6)
            assert isinstance(desk.sight(), Observed)
            desk.cloud.instances = [instance("i-1", "running")]
            desk.cloud.told.put_nowait(NAME)
            await asyncio.sleep(0.2)
            assert desk.sight() == Observed((instance("i-1", "running"),))

    run_virtual(test)


def test_has_seen_before_the_first_listing_is_unknown_also_if_a_poll_failed():
    async def test() -> None:
        desk = Watch()
        desk.cloud.listing = OutcomeUnknown("lost")
        await desk.poll()
        assert desk.listings.has_seen(NAME) is None

    run_virtual(test)


def test_has_seen_before_the_first_complete_listing_is_unknown_for_what_it_lacks():
    async def test() -> None:
        desk = Watch()
        desk.cloud.listing = Inventory((instance(),), complete=False)
        await desk.poll()
        assert (desk.listings.has_seen(NAME), desk.listings.has_seen("other")) == (True, None)
        desk.cloud.listing = Inventory(())
        await desk.poll()
        assert desk.listings.has_seen("other") is False
        desk.cloud.listing = Inventory((), complete=False)
        await desk.poll()
        assert desk.listings.has_seen("other") is False

    run_virtual(test)


def test_has_seen_instance_of_a_deleted_claim_is_true_until_a_complete_listing_lacks_it():
    async def test() -> None:
        desk = Watch(instance(state="ended"))
        await desk.poll()
        assert desk.listings.has_seen(NAME)
        desk.cloud.instances, desk.cloud.listing = [], Inventory((), complete=False)
        await desk.poll()
        assert desk.listings.has_seen(NAME)
        desk.cloud.listing = None
        await desk.poll()
        assert desk.listings.has_seen(NAME) is False

    run_virtual(test)


def test_has_seen_claim_that_was_deleted_since_the_last_listing_is_true():
    async def test() -> None:
        desk = Watch()
        await desk.poll()
        desk.knows(RUNNING)
        desk.listings.claim_changed(RUNNING, None)
        assert desk.listings.has_seen(NAME)

    run_virtual(test)
