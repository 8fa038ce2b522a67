"""Calls to a cloud: each ticket is used once, and every call has an outcome."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

import pytest

from skysail.claims.limits.launch_limiter import Brake, Limit, Limits
from skysail.claims.tracking.cloud_calls import Calls
from skysail.claims.types import CLOUD_INSTANCE, CloudInstance
from skysail.cloud.errors import Gone, NoCapacity, Refused, Throttled, Unknown
from skysail.core.actions import End, Launch
from tests.support import virtual_time
from tests.unit.claims.samples import CLOUD, NAME, NOW, ScriptedCloud, claim, instance, order, spec

MANY = Limits(
    object=Limit(99, timedelta(minutes=10)),
    namespace=Limit(99, timedelta(hours=1)),
    cloud=Limit(99, timedelta(hours=1)),
)


class Phone:
    """One process that calls one cloud."""

    def __init__(self, limits: Limits = MANY) -> None:
        self.cloud = ScriptedCloud()
        self.brake = Brake(limits, clock=asyncio.get_running_loop().time, now=self.now)
        self.woken: list[str] = []
        self.made: list[str] = []
        self.jump = timedelta()
        self.calls = Calls(
            {CLOUD: self.cloud}, self.brake, now=self.now, rng=random.Random(1), changed=self.woken.append
        )
        self.calls.made = lambda row: self.made.append(row.id)

    def now(self):
        return NOW + timedelta(seconds=asyncio.get_running_loop().time()) + self.jump

    def launch(self, *answers, of: CloudInstance | None = None) -> CloudInstance:
        """The claim with the ticket in it, as it is called for."""
        self.cloud.answers += answers
        of = of or claim("Launching", nonce=self.calls.ticket(NAME))
        self.calls.launch(Launch(CLOUD, CLOUD_INSTANCE.resource, of, order(of.metadata.name), of.status))
        return of

    async def answered(self, *answers):
        of = self.launch(*answers)
        await asyncio.sleep(2)
        return self.calls.last(of.metadata.name)


def play(story) -> None:
    virtual_time.run(story())


def test_a_ticket_stays_until_it_is_used_and_is_never_used_twice():
    async def story() -> None:
        phone = Phone()
        first = phone.calls.ticket(NAME)
        assert phone.calls.ticket(NAME) == first
        of = phone.launch(instance())
        with pytest.raises((KeyError, AssertionError)):
            phone.launch(of=of)
        assert phone.calls.ticket(NAME) != first
        with pytest.raises(AssertionError):
            phone.launch(of=of)
        await asyncio.sleep(2)
        assert len(phone.cloud.orders) == 1

    play(story)


def test_two_claims_have_two_tickets():
    async def story() -> None:
        phone = Phone()
        assert phone.calls.ticket("a") != phone.calls.ticket("b")

    play(story)


def test_a_call_is_under_way_until_it_is_answered():
    async def story() -> None:
        phone = Phone()
        phone.launch(instance())
        assert phone.calls.last(NAME).is_under_way
        await asyncio.sleep(2)
        assert phone.calls.last(NAME).instance == instance()
        assert (phone.woken, phone.made) == ([NAME], ["i-1"])

    play(story)


@pytest.mark.parametrize("error", [Unknown("lost"), Refused("No", "never"), Gone("404")])
def test_an_error_is_the_outcome_as_it_is(error):
    async def story() -> None:
        phone = Phone()
        call = await phone.answered(error)
        assert (call.error, call.failed, phone.woken) == (error, None, [NAME])

    play(story)


def test_a_mistake_in_the_cloud_s_code_is_a_doubt_and_is_logged(caplog):
    async def story() -> None:
        phone = Phone()
        call = await phone.answered(ZeroDivisionError("oops"))
        assert isinstance(call.error, Unknown)
        assert phone.woken == [NAME]

    play(story)
    assert "oops" in caplog.text


@pytest.mark.parametrize("strange", [{"claim": "another"}, {"cluster": "cluster-2"}])
def test_an_answer_about_another_claim_is_a_doubt(strange):
    async def story() -> None:
        phone = Phone()
        call = await phone.answered(instance(**strange))
        assert isinstance(call.error, Unknown)
        assert phone.made == []

    play(story)


@pytest.mark.parametrize(
    "after",
    [
        claim("Unknown", nonce="mine"),
        claim("Launching", nonce="theirs"),
        claim("Claimed"),
        claim("Terminated"),
    ],
)
@pytest.mark.parametrize("begun", [True, False])
def test_a_call_that_its_claim_does_not_wait_for_is_broken_off_and_is_a_doubt(after, begun):
    async def story() -> None:
        phone = Phone()
        phone.calls._tickets[NAME] = "mine"
        phone.launch(None)
        if begun:
            await asyncio.sleep(2)
        phone.calls.heed(after)
        assert phone.calls.last(NAME).is_under_way
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert isinstance(phone.calls.last(NAME).error, Unknown)
        assert phone.woken == [NAME]

    play(story)


def test_a_call_that_its_claim_waits_for_goes_on():
    async def story() -> None:
        phone = Phone()
        of = phone.launch(None)
        await asyncio.sleep(1300)
        phone.calls.heed(of)
        await asyncio.sleep(1)
        assert phone.calls.last(NAME).is_under_way

    play(story)


def test_a_call_that_ends_after_its_claim_is_gone_leaves_nothing_behind():
    async def story() -> None:
        phone = Phone()
        phone.launch(None)
        await asyncio.sleep(2)
        phone.calls.forget(NAME)
        await asyncio.sleep(2)
        assert phone.calls.last(NAME) is None
        assert (phone.calls._calls, phone.calls._tasks, phone.calls._tickets) == ({}, {}, {})

    play(story)


def test_a_late_answer_does_not_replace_the_outcome_of_a_newer_call():
    async def story() -> None:
        phone = Phone()
        phone.launch(None)
        await asyncio.sleep(2)
        phone.calls.forget(NAME)
        phone.launch(instance("i-2"))
        await asyncio.sleep(2)
        assert phone.calls.last(NAME).instance.id == "i-2"

    play(story)


def test_no_capacity_is_asked_for_later_and_later_each_time():
    async def story() -> None:
        phone = Phone()
        pauses = [(await phone.answered(NoCapacity("none"))).pause.total_seconds() for _ in range(40)]
        assert all(5 <= pause <= 300 for pause in pauses)
        assert pauses[0] <= 10
        assert max(pauses) > 200
        await phone.answered(instance())
        assert (await phone.answered(NoCapacity("none"))).pause.total_seconds() <= 10

    play(story)


def test_a_cloud_that_asks_for_a_pause_has_it():
    async def story() -> None:
        phone = Phone()
        call = await phone.answered(Throttled("slow", 77.0))
        assert call.pause >= timedelta(seconds=77)
        assert NOW < call.failed <= phone.now()

    play(story)


@pytest.mark.parametrize(
    ("answer", "counts"),
    [(instance(), 1), (Unknown("lost"), 1), (Gone("404"), 1), (NoCapacity("none"), 0), (Refused("No", "no"), 0)],
)
def test_what_may_have_been_made_is_counted(answer, counts):
    async def story() -> None:
        phone = Phone(Limits(object=Limit(1, timedelta(minutes=10))))
        await phone.answered(answer)
        assert bool(phone.brake.verdict(spec())) == bool(counts)

    play(story)


def test_many_that_were_planned_at_once_do_not_pass_the_brake_together():
    async def story() -> None:
        phone = Phone(Limits(namespace=Limit(3, timedelta(hours=1))))
        planned = [spec(f"u-{number}") for number in range(10)]
        for of in planned:
            name = f"{of.for_.uid}-0"
            phone.launch(None, of=claim("Launching", nonce=phone.calls.ticket(name), of=of))
        await asyncio.sleep(2)
        assert len(phone.cloud.orders) == 3
        assert phone.woken == [f"u-{number}-0" for number in range(3, 10)]
        await phone.calls.close()

    play(story)


async def asked(phone: Phone, id_: str, *, grace: float = 0.0):
    """When each instance was asked to end, after the answer to this one."""
    phone.calls.end(End(CLOUD, id_, grace))
    await asyncio.sleep(0.1)
    return phone.calls.asked(CLOUD)


def test_an_end_is_remembered_until_it_fails():
    async def story() -> None:
        phone = Phone()
        began = phone.now()
        assert await asked(phone, "i-1", grace=30.0) == {"i-1": began}
        assert phone.cloud.ends == [("i-1", 30.0)]
        phone.cloud.end_error = Gone("404")
        assert "i-2" in await asked(phone, "i-2")
        phone.cloud.end_error = Unknown("lost")
        assert "i-1" not in await asked(phone, "i-1")

    play(story)


def test_a_mistake_in_an_end_is_logged_and_asked_again(caplog):
    async def story() -> None:
        phone = Phone()
        phone.cloud.end_error = ZeroDivisionError("oops")
        assert await asked(phone, "i-1") == {}

    play(story)
    assert "oops" in caplog.text


def test_an_end_that_is_being_asked_for_is_not_asked_for_twice():
    async def story() -> None:
        phone = Phone()
        for _ in range(2):
            phone.calls.end(End(CLOUD, "i-1", 0.0))
        await asyncio.sleep(0.1)
        assert phone.cloud.ends == [("i-1", 0.0)]
        await asked(phone, "i-1")
        assert len(phone.cloud.ends) == 2

    play(story)


def test_an_end_that_a_cloud_does_not_answer_holds_up_nobody():
    async def story() -> None:
        phone = Phone()
        phone.cloud.is_silent = True
        for number in range(100):
            phone.calls.end(End(CLOUD, f"i-{number}", 0.0))
        await asyncio.sleep(60)
        assert len(phone.cloud.ends) == 100
        await phone.calls.close()
        assert len(asyncio.all_tasks()) == 1

    play(story)


def test_two_clouds_may_use_one_id():
    async def story() -> None:
        phone = Phone()
        await asked(phone, "i-1")
        assert "i-1" not in phone.calls.asked("another")

    play(story)


def test_ends_are_not_remembered_for_ever_and_a_snapshot_keeps_what_it_has():
    async def story() -> None:
        phone = Phone()
        held = await asked(phone, "i-1")
        phone.jump = timedelta(hours=2)
        assert list(await asked(phone, "i-2")) == ["i-2"]
        assert list(held) == ["i-1"]

    play(story)


def test_a_cloud_that_is_throttled_is_known_to_be_whoever_called():
    async def story() -> None:
        phone = Phone()
        assert phone.calls.throttled(CLOUD) is None
        call = await phone.answered(Throttled("slow", 77.0))
        assert phone.calls.throttled(CLOUD) == call
        assert phone.calls.throttled("another") is None
        await phone.answered(NoCapacity("none"))
        assert phone.calls.throttled(CLOUD) == call

    play(story)


@pytest.mark.parametrize("id_", ["", "i" * 257])
def test_an_id_that_cannot_be_written_down_is_a_doubt(id_):
    async def story() -> None:
        phone = Phone()
        assert isinstance((await phone.answered(instance(id_))).error, Unknown)
        assert phone.made == []

    play(story)


def test_a_process_that_stops_leaves_no_call_behind():
    async def story() -> None:
        phone = Phone()
        phone.launch(None)
        await asyncio.sleep(2)
        await phone.calls.close()
        assert isinstance(phone.calls.last(NAME).error, Unknown)
        assert len(asyncio.all_tasks()) == 1

    play(story)
