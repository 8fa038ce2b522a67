"""How many launches are too many."""

from __future__ import annotations

from datetime import timedelta

import pytest

from skysail.claims.limits.launch_limiter import Brake, Limit, Limits
from skysail.claims.tracking.cloud_calls import seed
from skysail.claims.types import Beneficiary, CloudInstanceSpec
from tests.unit.claims.samples import NOW, ago, claim, spec

LIMITS = Limits(
    object=Limit(2, timedelta(minutes=10)),
    namespace=Limit(4, timedelta(hours=1)),
    cloud=Limit(6, timedelta(hours=1)),
)


class Clock:
    """`passed` seconds by the clock that only goes forward, `set` by so many by hand."""

    def __init__(self) -> None:
        self.passed = 0.0
        self.set = 0.0

    def now(self):
        return NOW + timedelta(seconds=self.passed + self.set)


def braked(*launches, clock: Clock | None = None) -> Brake:
    clock = clock or Clock()
    brake = Brake(LIMITS, clock=lambda: clock.passed, now=clock.now)
    for of, age in launches:
        brake.count(of, age)
    return brake


def before(seconds: float):
    return timedelta(seconds=seconds)


def other(uid: str, namespace: str = "n", provider: str = "cloud") -> CloudInstanceSpec:
    return CloudInstanceSpec(provider=provider, for_=Beneficiary(kind="Pod", namespace=namespace, name=uid, uid=uid))


def test_the_defaults_are_those_of_the_design():
    limits = Limits()
    assert (limits.object.launches, limits.namespace.launches, limits.cloud.launches) == (5, 60, 300)
    assert (limits.object.within, limits.namespace.within) == (timedelta(minutes=10), timedelta(hours=1))


@pytest.mark.parametrize(
    ("launches", "sentence"),
    [
        ([], ""),
        ([(spec(), before(1))], ""),
        ([(spec(), before(1))] * 2, "Pod n/a had 2 launches in 10 minutes"),
        ([(spec(), before(600))] * 2, ""),
        ([(other(str(n)), before(1)) for n in range(4)], "Namespace n had 4 launches in an hour"),
        ([(other(str(n), "m"), before(1)) for n in range(5)], ""),
        ([(other(str(n), str(n)), before(1)) for n in range(6)], "cloud had 6 launches in an hour from this cluster"),
        ([(other(str(n), str(n), "elsewhere"), before(1)) for n in range(6)], ""),
    ],
)
def test_each_limit_speaks_for_itself(launches, sentence):
    told = braked(*launches).verdict(spec())
    assert sentence in told
    assert bool(told) == bool(sentence)


def test_the_next_one_is_told_and_comes():
    clock = Clock()
    brake = braked((spec(), before(500)), (spec(), before(100)), clock=clock)
    assert "at 12:01:40 UTC" in brake.verdict(spec())
    clock.passed = 99
    assert "at 12:01:40 UTC" in brake.verdict(spec())
    clock.passed = 100
    assert brake.verdict(spec()) == ""


def test_pods_that_do_the_same_work_are_one_object():
    brake = braked((spec("u-1", work="job/0"), before(1)), (spec("u-2", work="job/0"), before(1)))
    assert brake.verdict(spec("u-3", work="job/0"))
    assert not brake.verdict(spec("u-1"))


def test_what_came_to_nothing_does_not_count():
    brake = braked((spec(), before(2)))
    launched = brake.count(spec())
    brake.take_back(spec(), launched)
    assert brake.verdict(spec()) == ""
    brake.take_back(spec(), launched)
    brake.count(spec())
    assert brake.verdict(spec())


def test_launches_are_counted_in_whatever_order_they_are_told():
    brake = braked((spec(), before(1)), (spec(), before(3000)), (spec(), before(2)))
    assert "2 launches" in brake.verdict(spec())


@pytest.mark.parametrize("jump", [-86400, -60, 60, 86400])
def test_a_clock_that_is_set_neither_opens_nor_holds_the_brake(jump):
    clock = Clock()
    brake = braked((spec(), before(0)), (spec(), before(0)), clock=clock)
    clock.set = jump
    assert brake.verdict(spec())
    clock.passed = 600
    assert brake.verdict(spec()) == ""


def test_what_is_long_ago_is_forgotten_whoever_it_was_for():
    brake = braked(*((other(str(n), str(n)), before(4000)) for n in range(50)), (spec(), before(0)))
    assert len(brake._launches) == 3


def test_a_new_process_knows_of_the_launches_before_it_also_of_those_that_ended():
    launched = claim("Launching", nonce="theirs", of=spec("u-1", work="w"))
    ended = claim("Terminated", of=spec("u-2", work="w"), start_time=ago(60))
    never = claim("Terminated", of=spec("u-3", work="w"))
    brake = braked()
    seed(brake, [never, claim("Claimed", of=spec("u-4", work="w")), launched], NOW)
    assert brake.verdict(spec("u-5", work="w")) == ""
    brake = braked()
    seed(brake, [launched, never, ended], NOW)
    assert "2 launches" in brake.verdict(spec("u-5", work="w"))


def test_launches_before_a_process_count_by_their_age():
    clock = Clock()
    brake = braked(clock=clock)
    seed(brake, [claim("Running", of=spec(f"u-{age}", work="w"), start_time=ago(age)) for age in (100, 300)], NOW)
    clock.passed = 299
    assert brake.verdict(spec("u-5", work="w"))
    clock.passed = 301
    assert brake.verdict(spec("u-5", work="w")) == ""


def test_a_launch_that_is_said_to_be_in_the_future_is_one_of_now():
    clock = Clock()
    brake = braked(clock=clock)
    seed(brake, [claim("Running", of=spec(f"u-{n}", work="w"), start_time=ago(-86400)) for n in range(2)], NOW)
    assert brake.verdict(spec("u-5", work="w"))
    clock.passed = 601
    assert brake.verdict(spec("u-5", work="w")) == ""
