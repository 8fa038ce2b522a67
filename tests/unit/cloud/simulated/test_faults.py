"""Every fault does what its name says, once, and only where it was put."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from skysail.cloud.account import GpuRequest, Inventory
from skysail.cloud.errors import Gone, NoCapacity, OutcomeUnknown, Rejected, Throttled
from skysail.cloud.simulated.faults import FAULTS_BY_OPERATION, Fault
from tests.support.virtual_time import run
from tests.unit.cloud.simulated.shop import PLAIN, account, launch_spec, told

ERRORS = {
    "lost": OutcomeUnknown,
    "lost-done": OutcomeUnknown,
    "500": OutcomeUnknown,
    "500-done": OutcomeUnknown,
    "malformed": OutcomeUnknown,
    "401": Rejected,
    "402": Rejected,
    "404": Gone,
    "409": OutcomeUnknown,
    "429": Throttled,
    "no-capacity": NoCapacity,
}
DONE = {"lost-done", "500-done", "malformed"}


@pytest.mark.parametrize("what", [what for what in FAULTS_BY_OPERATION["create"] if what in ERRORS])
def test_a_create_goes_wrong_once_and_its_effect_is_as_told(what):
    async def main():
        cloud = account(Fault(on="create", at=2, what=what))
        await cloud.create(launch_spec(claim="one"))
        with pytest.raises(ERRORS[what]):
            await cloud.create(launch_spec(claim="two"))
        claims = [instance.claim for instance in (await cloud.list()).instances]
        assert claims == (["one", "two"] if what in DONE else ["one"])
        assert [row.verb for row in cloud.ledger.rows] == ["create", "create" if what in DONE else "refused"]
        await cloud.create(launch_spec(claim="three"))

    run(main())


@pytest.mark.parametrize("what", [what for what in FAULTS_BY_OPERATION["end"] if what in ERRORS])
def test_an_end_goes_wrong_once_and_its_effect_is_as_told(what):
    async def main():
        cloud = account(Fault(on="end", at=1, what=what))
        made = await cloud.create(launch_spec("run=1h"))
        await asyncio.sleep(5)
        with pytest.raises(ERRORS[what]):
            await cloud.terminate(made.id, 0)
        await asyncio.sleep(1)
        assert (await cloud.get(made.id)).state == ("ended" if what in DONE else "running")
        await cloud.terminate(made.id, 0)
        await asyncio.sleep(1)
        assert (await cloud.get(made.id)).state == "ended"

    run(main())


@pytest.mark.parametrize("what", [what for what in FAULTS_BY_OPERATION["list"] if what in ERRORS])
def test_a_listing_may_fail(what):
    async def main():
        cloud = account(Fault(on="list", at=1, what=what))
        made = await cloud.create(launch_spec())
        with pytest.raises(ERRORS[what]):
            await cloud.list()
        assert await cloud.list() == Inventory((made,))

    run(main())


@pytest.mark.parametrize(
    ("what", "claims", "complete"),
    [("empty", [], True), ("partial", ["two"], False), ("partial-lie", ["two"], True)],
)
def test_a_listing_may_lie(what, claims, complete):
    async def main():
        cloud = account(Fault(on="list", at=1, what=what))
        for claim in ("one", "two", "three"):
            await cloud.create(launch_spec(claim=claim))
        listing = await cloud.list()
        assert ([instance.claim for instance in listing.instances], listing.complete) == (claims, complete)
        assert len((await cloud.list()).instances) == 3

    run(main())


def test_a_look_may_deny_what_is_there_and_admit_it_later():
    async def main():
        cloud = account(Fault(on="look", at=1, what="404"))
        made = await cloud.create(launch_spec())
        assert await cloud.get(made.id) is None
        assert await cloud.get(made.id) == made

    run(main())


@pytest.mark.parametrize("what", [what for what in FAULTS_BY_OPERATION["look"] if what in ERRORS and what != "404"])
def test_a_look_may_fail(what):
    async def main():
        cloud = account(Fault(on="look", at=1, what=what))
        made = await cloud.create(launch_spec())
        with pytest.raises(ERRORS[what]):
            await cloud.get(made.id)
        assert await cloud.get(made.id) == made

    run(main())


@pytest.mark.parametrize("on", list(FAULTS_BY_OPERATION))
def test_a_slow_answer_takes_its_time(on):
    async def main():
        cloud = account(Fault(on=on, what="slow", seconds=45.0))
        planted = cloud.inject_orphan()
        calls = {
            "create": lambda: cloud.create(launch_spec()),
            "end": lambda: cloud.terminate(planted.id, 0),
            "list": cloud.list,
            "look": lambda: cloud.get(planted.id),
            "offers": cloud.offers,
        }
        await calls[on]()
        assert asyncio.get_running_loop().time() == 45.0

    run(main())


def test_throttling_says_how_long():
    async def main():
        with pytest.raises(Throttled) as throttled:
            await account(Fault(on="list", what="429", seconds=7.0)).list()
        assert throttled.value.retry_after == 7.0

    run(main())


def test_one_call_may_make_two():
    async def main():
        cloud = account(Fault(on="create", at=1, what="duplicate"))
        made = await cloud.create(launch_spec())
        one, two = (await cloud.list()).instances
        assert one == made
        assert (two.claim, two.id != one.id) == (one.claim, True)

    run(main())


@pytest.mark.parametrize(
    ("what", "rows"),
    [
        ("slow-start", [(0.0, "create"), (30.0, "started"), (40.0, "exited"), (40.0, "ended")]),
        ("slow-end", [(0.0, "create"), (2.0, "started"), (12.0, "exited"), (42.0, "ended")]),
    ],
)
def test_a_life_may_be_disturbed(what, rows):
    async def main():
        cloud = account(Fault(on="create", what=what))
        await cloud.create(launch_spec())
        await asyncio.sleep(1000)
        assert told(cloud) == rows

    run(main())


def test_a_preemption_comes_before_a_long_program_ends():
    async def main():
        cloud = account(Fault(on="create", what="preempted", seconds=5.0))
        made = await cloud.create(launch_spec("run=1h"))
        await asyncio.sleep(100)
        ended = await cloud.get(made.id)
        assert (ended.ended, ended.exit.reason) == (7.0, "Preempted")

    run(main())


def test_a_dear_instance_costs_twice_the_price():
    async def main():
        assert (
            await account(Fault(on="create", what="dear")).create(launch_spec())
        ).usd_per_hour == 2 * PLAIN.usd_per_hour

    run(main())


@pytest.mark.parametrize(("what", "is_found"), [("late", True), ("hidden", False)])
def test_an_instance_may_show_late(what, is_found):
    async def main():
        cloud = account(Fault(on="create", what=what))
        made = await cloud.create(launch_spec("run=1h"))
        assert (await cloud.list()).instances == ()
        assert (await cloud.get(made.id) is not None) == is_found
        await asyncio.sleep(30)
        assert (await cloud.list()).instances == (await cloud.get(made.id),)

    run(main())


def test_an_end_may_be_accepted_and_forgotten_until_it_is_asked_for_again():
    async def main():
        cloud = account(Fault(on="end", at=1, what="end-ignored"))
        made = await cloud.create(launch_spec("run=1h"))
        await cloud.terminate(made.id, 0)
        await asyncio.sleep(100)
        assert (await cloud.get(made.id)).state == "running"
        await cloud.terminate(made.id, 0)
        await asyncio.sleep(1)
        assert (await cloud.get(made.id)).state == "ended"

    run(main())


def test_an_end_may_be_slow():
    async def main():
        cloud = account(Fault(on="end", what="slow-end"))
        made = await cloud.create(launch_spec("run=1h"))
        await cloud.terminate(made.id, 0)
        await asyncio.sleep(29)
        assert (await cloud.get(made.id)).state == "starting"
        await asyncio.sleep(2)
        assert (await cloud.get(made.id)).ended == 30.0

    run(main())


def test_a_create_may_be_done_long_after_everybody_stopped_waiting():
    async def main():
        cloud = account(Fault(on="create", at=1, what="lost-later", seconds=150.0))
        with pytest.raises(OutcomeUnknown):
            await cloud.create(launch_spec())
        await asyncio.sleep(149)
        assert (await cloud.list()).instances == ()
        await asyncio.sleep(2)
        assert [instance.created for instance in (await cloud.list()).instances] == [150.0]
        await cloud.close()

    run(main())


def test_a_cloud_that_is_down_answers_nothing_and_what_runs_there_runs_on():
    async def main():
        cloud = account(Fault(what="lost", since=1.0, until=3601.0))
        made = await cloud.create(launch_spec("run=30m", max_lifetime=7200.0))
        await asyncio.sleep(1)
        for call in (cloud.list(), cloud.get(made.id), cloud.terminate(made.id, 0), cloud.create(launch_spec())):
            with pytest.raises(OutcomeUnknown):
                await call
        await asyncio.sleep(3600)
        assert (await cloud.get(made.id)).ended == 1802.0

    run(main())


def test_a_wished_fault_befalls_the_first_create_of_a_pod_only():
    async def main():
        cloud = account()
        with pytest.raises(OutcomeUnknown):
            await cloud.create(launch_spec("create=lost-done", claim="one"))
        await cloud.create(launch_spec("create=lost-done", claim="two"))
        assert [instance.claim for instance in (await cloud.list()).instances] == ["one", "two"]

    run(main())


def test_the_first_fault_that_fits_counts():
    async def main():
        cloud = account(Fault(on="list", at=2, what="empty"), Fault(on="list", what="500"))
        with pytest.raises(OutcomeUnknown):
            await cloud.list()
        assert (await cloud.list()).complete

    run(main())


@pytest.mark.parametrize(
    ("on", "what"), [("list", "duplicate"), ("look", "empty"), ("end", "no-capacity"), (None, "late")]
)
def test_a_fault_that_cannot_be_is_refused(on, what):
    with pytest.raises(ValueError, match="is no fault of"):
        Fault(on=on, what=what)


def test_calls_are_counted_by_kind():
    async def main():
        cloud = account(vendor=replace(PLAIN, start=0.0))
        made = await cloud.create(launch_spec())
        await cloud.list()
        await cloud.list()
        await cloud.get(made.id)
        assert cloud.script.calls == {"create": 1, "list": 2, "look": 1}

    run(main())


def test_create_no_capacity_for_one_type_leaves_the_others():
    async def main():
        cloud = account(Fault(on="create", what="no-capacity", gpu_type="a"))
        with pytest.raises(NoCapacity):
            await cloud.create(launch_spec(gpus=GpuRequest("A")))
        assert (await cloud.create(launch_spec(gpus=GpuRequest("B")))).usd_per_hour == 36.0

    run(main())


@pytest.mark.parametrize("what", [what for what in FAULTS_BY_OPERATION["offers"] if what in ERRORS])
def test_offers_fault_raises_its_error_once(what):
    async def main():
        cloud = account(Fault(on="offers", at=1, what=what))
        with pytest.raises(ERRORS[what]):
            await cloud.offers()
        assert len((await cloud.offers()).offers) == 3

    run(main())


@pytest.mark.parametrize(
    ("what", "want"),
    [
        ("low-stock", [("A", 7.2, "High"), ("B", 36.0, "Low")]),
        ("out-of-stock", [("A", 7.2, "High"), ("B", 36.0, "None")]),
        ("dear", [("A", 7.2, "High"), ("B", 72.0, "High")]),
        ("empty", []),
    ],
)
def test_offers_changed_by_a_fault_show_stock_and_price(what, want):
    async def main():
        cloud = account(Fault(on="offers", what=what, gpu_type="B"))
        listed = [offer for offer in (await cloud.offers()).offers if offer.gpu_type]
        assert [(offer.gpu_type, offer.usd_per_hour, offer.stock) for offer in listed] == want

    run(main())


@pytest.mark.parametrize("place", [{"region": "mars"}, {"cloud_type": "SPOT"}])
def test_create_unknown_region_or_tier_is_rejected(place):
    async def main():
        cloud = account()
        with pytest.raises(Rejected, match=next(iter(place.values()))):
            await cloud.create(launch_spec(gpus=GpuRequest("A"), **place))
        assert (await cloud.list()).instances == ()
        await cloud.create(launch_spec(gpus=GpuRequest("A"), region="simulated"))

    run(main())
