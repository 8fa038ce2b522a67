"""Calls to a cloud: each ticket is used once, and every call has an outcome."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

import pytest

from skysail.claims.limits.launch_limiter import LaunchLimiter, LaunchLimits, RateLimit
from skysail.claims.tracking.cloud_calls import CloudCalls
from skysail.claims.types import CLOUD_INSTANCE, Candidate, CloudInstance
from skysail.cloud.errors import Gone, NoCapacity, OutcomeUnknown, Rejected, Throttled
from skysail.core.actions import LaunchInstance, TerminateInstance
from tests.support import virtual_time
from tests.unit.claims.samples import CLOUD, NAME, NOW, ScriptedCloud, claim, instance, launch_spec, spec

MANY = LaunchLimits(
    object=RateLimit(99, timedelta(minutes=10)),
    namespace=RateLimit(99, timedelta(hours=1)),
    cloud=RateLimit(99, timedelta(hours=1)),
)


class Harness:
    """One process that calls one cloud."""

    def __init__(self, limits: LaunchLimits = MANY) -> None:
        self.cloud = ScriptedCloud()
        self.brake = LaunchLimiter(limits, clock=asyncio.get_running_loop().time, now=self.now)
        self.woken: list[str] = []
        self.made: list[str] = []
        self.jump = timedelta()
        self.calls = CloudCalls(
            {CLOUD: self.cloud}, self.brake, now=self.now, rng=random.Random(1), changed=self.woken.append
        )
        self.calls.on_created = lambda row: self.made.append(row.id)

    def now(self):
        return NOW + timedelta(seconds=asyncio.get_running_loop().time()) + self.jump

    def launch(self, *answers, of: CloudInstance | None = None) -> CloudInstance:
        """The claim with the ticket in it, as it is called for."""
        self.cloud.answers += answers
        of = of or claim("Launching", nonce=self.calls.nonce_for(NAME))
        self.calls.launch(LaunchInstance(CLOUD, CLOUD_INSTANCE.resource, of, launch_spec(of.metadata.name), of.status))
        return of

    async def answered(self, *answers):
        of = self.launch(*answers)
        await asyncio.sleep(2)
        return self.calls.last(of.metadata.name)


def run_virtual(test) -> None:
    virtual_time.run(test())


def test_a_ticket_stays_until_it_is_used_and_is_never_used_twice():
    async def test() -> None:
        harness = Harness()
        first = harness.calls.nonce_for(NAME)
        assert harness.calls.nonce_for(NAME) == first
        of = harness.launch(instance())
        with pytest.raises((KeyError, AssertionError)):
            harness.launch(of=of)
        assert harness.calls.nonce_for(NAME) != first
        with pytest.raises(AssertionError):
            harness.launch(of=of)
        await asyncio.sleep(2)
        assert len(harness.cloud.launch_specs) == 1

    run_virtual(test)


@pytest.mark.parametrize(
    ("answer", "message", "details"),
    [
        (instance(), "launched", {"instance": instance().id, "usd_per_hour": instance().usd_per_hour}),
        (NoCapacity("No T4 is free."), "not launched", {"why": "No T4 is free."}),
        (OutcomeUnknown("No answer."), "not launched", {"why": "No answer."}),
    ],
)
def test_every_launch_is_logged_with_claim_provider_and_price_or_reason(caplog, answer, message, details):
    caplog.set_level("INFO")

    async def test() -> None:
        await Harness().answered(answer)

    run_virtual(test)
    (record,) = [record for record in caplog.records if record.name == "skysail.claims.tracking.cloud_calls"]
    expected = {"claim": NAME, "provider": CLOUD, **details}
    assert (record.message, {key: getattr(record, key) for key in expected}) == (message, expected)


def test_two_claims_have_two_tickets():
    async def test() -> None:
        harness = Harness()
        assert harness.calls.nonce_for("a") != harness.calls.nonce_for("b")

    run_virtual(test)


def test_a_call_is_under_way_until_it_is_answered():
    async def test() -> None:
        harness = Harness()
        harness.launch(instance())
        assert harness.calls.last(NAME).is_under_way
        await asyncio.sleep(2)
        assert harness.calls.last(NAME).instance == instance()
        assert (harness.woken, harness.made) == ([NAME], ["i-1"])

    run_virtual(test)


@pytest.mark.parametrize("error", [OutcomeUnknown("lost"), Rejected("No", "never"), Gone("404")])
def test_an_error_is_the_outcome_as_it_is(error):
    async def test() -> None:
        harness = Harness()
        call = await harness.answered(error)
        assert (call.error, call.failed, harness.woken) == (error, None, [NAME])

    run_virtual(test)


def test_a_mistake_in_the_cloud_s_code_is_a_doubt_and_is_logged(caplog):
    async def test() -> None:
        harness = Harness()
        call = await harness.answered(ZeroDivisionError("oops"))
        assert isinstance(call.error, OutcomeUnknown)
        assert harness.woken == [NAME]

    run_virtual(test)
    assert "oops" in caplog.text


@pytest.mark.parametrize("strange", [{"claim": "another"}, {"cluster": "cluster-2"}])
def test_an_answer_about_another_claim_is_a_doubt(strange):
    async def test() -> None:
        harness = Harness()
        call = await harness.answered(instance(**strange))
        assert isinstance(call.error, OutcomeUnknown)
        assert harness.made == []

    run_virtual(test)


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
    async def test() -> None:
        harness = Harness()
        harness.calls._tickets[NAME] = "mine"
        harness.launch(None)
        if begun:
            await asyncio.sleep(2)
        harness.calls.cancel_stale(after)
        assert harness.calls.last(NAME).is_under_way
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert isinstance(harness.calls.last(NAME).error, OutcomeUnknown)
        assert harness.woken == [NAME]

    run_virtual(test)


def test_a_call_that_its_claim_waits_for_goes_on():
    async def test() -> None:
        harness = Harness()
        of = harness.launch(None)
        await asyncio.sleep(1300)
        harness.calls.cancel_stale(of)
        await asyncio.sleep(1)
        assert harness.calls.last(NAME).is_under_way

    run_virtual(test)


def test_a_call_that_ends_after_its_claim_is_gone_leaves_nothing_behind():
    async def test() -> None:
        harness = Harness()
        harness.launch(None)
        await asyncio.sleep(2)
        harness.calls.discard(NAME)
        await asyncio.sleep(2)
        assert harness.calls.last(NAME) is None
        assert (harness.calls._calls, harness.calls._tasks, harness.calls._tickets) == ({}, {}, {})

    run_virtual(test)


def test_a_late_answer_does_not_replace_the_outcome_of_a_newer_call():
    async def test() -> None:
        harness = Harness()
        harness.launch(None)
        await asyncio.sleep(2)
        harness.calls.discard(NAME)
        harness.launch(instance("i-2"))
        await asyncio.sleep(2)
        assert harness.calls.last(NAME).instance.id == "i-2"

    run_virtual(test)


def test_no_capacity_is_asked_for_later_and_later_each_time():
    async def test() -> None:
        harness = Harness()
        pauses = [(await harness.answered(NoCapacity("none"))).pause.total_seconds() for _ in range(40)]
        assert all(5 <= pause <= 300 for pause in pauses)
        assert pauses[0] <= 10
        assert max(pauses) > 200
        await harness.answered(instance())
        assert (await harness.answered(NoCapacity("none"))).pause.total_seconds() <= 10

    run_virtual(test)


def test_a_cloud_that_asks_for_a_pause_has_it():
    async def test() -> None:
        harness = Harness()
        call = await harness.answered(Throttled("slow", 77.0))
        assert call.pause >= timedelta(seconds=77)
        assert NOW < call.failed <= harness.now()

    run_virtual(test)


@pytest.mark.parametrize(
    ("answer", "counts"),
    [
        (instance(), 1),
        (OutcomeUnknown("lost"), 1),
        (Gone("404"), 1),
        (NoCapacity("none"), 0),
        (Rejected("No", "no"), 0),
    ],
)
def test_what_may_have_been_made_is_counted(answer, counts):
    async def test() -> None:
        harness = Harness(LaunchLimits(object=RateLimit(1, timedelta(minutes=10))))
        await harness.answered(answer)
        assert bool(harness.brake.check(spec())) == bool(counts)

    run_virtual(test)


def test_many_that_were_planned_at_once_do_not_pass_the_brake_together():
    async def test() -> None:
        harness = Harness(LaunchLimits(namespace=RateLimit(3, timedelta(hours=1))))
        planned = [spec(f"u-{number}") for number in range(10)]
        for of in planned:
            name = f"{of.owner.uid}-0"
            harness.launch(None, of=claim("Launching", nonce=harness.calls.nonce_for(name), of=of))
        await asyncio.sleep(2)
        assert len(harness.cloud.launch_specs) == 3
        assert harness.woken == [f"u-{number}-0" for number in range(3, 10)]
        await harness.calls.close()

    run_virtual(test)


async def asked(harness: Harness, id_: str, *, grace: float = 0.0):
    """When each instance was asked to end, after the answer to this one."""
    harness.calls.terminate(TerminateInstance(CLOUD, id_, grace))
    await asyncio.sleep(0.1)
    return harness.calls.termination_requests(CLOUD)


def test_an_end_is_remembered_until_it_fails():
    async def test() -> None:
        harness = Harness()
        began = harness.now()
        assert await asked(harness, "i-1", grace=30.0) == {"i-1": began}
        assert harness.cloud.ends == [("i-1", 30.0)]
        harness.cloud.end_error = Gone("404")
        assert "i-2" in await asked(harness, "i-2")
        harness.cloud.end_error = OutcomeUnknown("lost")
        assert "i-1" not in await asked(harness, "i-1")

    run_virtual(test)


def test_a_mistake_in_an_end_is_logged_and_asked_again(caplog):
    async def test() -> None:
        harness = Harness()
        harness.cloud.end_error = ZeroDivisionError("oops")
        assert await asked(harness, "i-1") == {}

    run_virtual(test)
    assert "oops" in caplog.text


def test_an_end_that_is_being_asked_for_is_not_asked_for_twice():
    async def test() -> None:
        harness = Harness()
        for _ in range(2):
            harness.calls.terminate(TerminateInstance(CLOUD, "i-1", 0.0))
        await asyncio.sleep(0.1)
        assert harness.cloud.ends == [("i-1", 0.0)]
        await asked(harness, "i-1")
        assert len(harness.cloud.ends) == 2

    run_virtual(test)


def test_an_end_that_a_cloud_does_not_answer_holds_up_nobody():
    async def test() -> None:
        harness = Harness()
        harness.cloud.is_silent = True
        for number in range(100):
            harness.calls.terminate(TerminateInstance(CLOUD, f"i-{number}", 0.0))
        await asyncio.sleep(60)
        assert len(harness.cloud.ends) == 100
        await harness.calls.close()
        assert len(asyncio.all_tasks()) == 1

    run_virtual(test)


def test_two_clouds_may_use_one_id():
    async def test() -> None:
        harness = Harness()
        await asked(harness, "i-1")
        assert "i-1" not in harness.calls.termination_requests("another")

    run_virtual(test)


def test_ends_are_not_remembered_for_ever_and_a_snapshot_keeps_what_it_has():
    async def test() -> None:
        harness = Harness()
        held = await asked(harness, "i-1")
        harness.jump = timedelta(hours=2)
        assert list(await asked(harness, "i-2")) == ["i-2"]
        assert list(held) == ["i-1"]

    run_virtual(test)


def test_a_cloud_that_is_throttled_is_known_to_be_whoever_called():
    async def test() -> None:
        harness = Harness()
        assert harness.calls.throttled_call(CLOUD) is None
        call = await harness.answered(Throttled("slow", 77.0))
        assert harness.calls.throttled_call(CLOUD) == call
        assert harness.calls.throttled_call("another") is None
        await harness.answered(NoCapacity("none"))
        assert harness.calls.throttled_call(CLOUD) == call

    run_virtual(test)


@pytest.mark.parametrize("id_", ["", "i" * 257])
def test_an_id_that_cannot_be_written_down_is_a_doubt(id_):
    async def test() -> None:
        harness = Harness()
        assert isinstance((await harness.answered(instance(id_))).error, OutcomeUnknown)
        assert harness.made == []

    run_virtual(test)


def test_a_process_that_stops_leaves_no_call_behind():
    async def test() -> None:
        harness = Harness()
        harness.launch(None)
        await asyncio.sleep(2)
        await harness.calls.close()
        assert isinstance(harness.calls.last(NAME).error, OutcomeUnknown)
        assert len(asyncio.all_tasks()) == 1

    run_virtual(test)


def test_no_capacity_of_all_but_the_last_candidate_needs_no_delay_and_counts_as_no_launch():
    async def test() -> None:
        harness = Harness(LaunchLimits(object=RateLimit(1, timedelta(minutes=10))))
        rows = tuple(Candidate(gpu_type=name, usd_per_hour=1.0) for name in ("T4", "L4", "H100"))
        of = spec(candidates=rows)
        for number in range(2):
            pauses = []
            for index in range(3):
                nonce = harness.calls.nonce_for(NAME)
                harness.launch(NoCapacity("none"), of=claim("Launching", of=of, nonce=nonce, candidate=index))
                await asyncio.sleep(2)
                pauses.append(harness.calls.last(NAME).pause.total_seconds())
                assert harness.brake.check(of) == ""
            assert pauses[:2] == [0.0, 0.0]
            assert 5 <= pauses[2] <= 10 * 2**number
        assert len(harness.cloud.launch_specs) == 6

    run_virtual(test)
