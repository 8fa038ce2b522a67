"""How many launches are too many."""

from __future__ import annotations

from datetime import timedelta

import pytest

from skysail.claims.limits.launch_limiter import LaunchLimiter, LaunchLimits, RateLimit
from skysail.claims.tracking.cloud_calls import seed_limiter
from skysail.claims.types import CloudInstanceSpec, OwnerRef
from tests.unit.claims.samples import NOW, ago, claim, spec

LIMITS = LaunchLimits(
    object=RateLimit(2, timedelta(minutes=10)),
    namespace=RateLimit(4, timedelta(hours=1)),
    cloud=RateLimit(6, timedelta(hours=1)),
)


class Clock:
    """`passed` seconds by the clock that only goes forward, `set` by so many by hand."""

    def __init__(self) -> None:
        self.passed = 0.0
        self.set = 0.0

    def now(self):
        return NOW + timedelta(seconds=self.passed + self.set)


def braked(*launches, clock: Clock | None = None) -> LaunchLimiter:
    clock = clock or Clock()
    limiter = LaunchLimiter(LIMITS, clock=lambda: clock.passed, now=clock.now)
    for of, age in launches:
        limiter.record(of, age)
    return limiter


def before(seconds: float):
    return timedelta(seconds=seconds)


def other(uid: str, namespace: str = "n", provider: str = "cloud") -> CloudInstanceSpec:
    return CloudInstanceSpec(provider=provider, owner=OwnerRef(kind="Pod", namespace=namespace, name=uid, uid=uid))


def test_the_defaults_are_those_of_the_design():
    limits = LaunchLimits()
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
    told = braked(*launches).check(spec())
    assert sentence in told
    assert bool(told) == bool(sentence)


@pytest.mark.parametrize(
    ("launches", "setting"),
    [
        ([(spec(), before(1))] * 2, "launches_per_object"),
        ([(other(str(n)), before(1)) for n in range(4)], "launches_per_namespace"),
        ([(other(str(n), str(n)), before(1)) for n in range(6)], "launches_per_cloud"),
    ],
)
def test_check_limit_is_used_up_names_its_setting(launches, setting):
    assert f"raise the setting {setting}." in braked(*launches).check(spec())


def test_the_next_one_is_told_and_comes():
    clock = Clock()
    limiter = braked((spec(), before(500)), (spec(), before(100)), clock=clock)
    assert "at 12:01:40 UTC" in limiter.check(spec())
    clock.passed = 99
    assert "at 12:01:40 UTC" in limiter.check(spec())
    clock.passed = 100
    assert limiter.check(spec()) == ""


def test_pods_that_do_the_same_work_are_one_object():
    limiter = braked((spec("u-1", work_key="job/0"), before(1)), (spec("u-2", work_key="job/0"), before(1)))
    assert limiter.check(spec("u-3", work_key="job/0"))
    assert not limiter.check(spec("u-1"))


def test_what_came_to_nothing_does_not_count():
    limiter = braked((spec(), before(2)))
    launch_time = limiter.record(spec())
    limiter.undo(spec(), launch_time)
    assert limiter.check(spec()) == ""
    limiter.undo(spec(), launch_time)
    limiter.record(spec())
    assert limiter.check(spec())


def test_launches_are_counted_in_whatever_order_they_are_told():
    limiter = braked((spec(), before(1)), (spec(), before(3000)), (spec(), before(2)))
    assert "2 launches" in limiter.check(spec())


@pytest.mark.parametrize("jump", [-86400, -60, 60, 86400])
def test_a_clock_that_is_set_neither_opens_nor_holds_the_brake(jump):
    clock = Clock()
    limiter = braked((spec(), before(0)), (spec(), before(0)), clock=clock)
    clock.set = jump
    assert limiter.check(spec())
    clock.passed = 600
    assert limiter.check(spec()) == ""


def test_what_is_long_ago_is_forgotten_whoever_it_was_for():
    limiter = braked(*((other(str(n), str(n)), before(4000)) for n in range(50)), (spec(), before(0)))
    assert len(limiter._launches) == 3


def test_a_new_process_knows_of_the_launches_before_it_also_of_those_that_ended():
    launched = claim("Launching", nonce="theirs", of=spec("u-1", work_key="w"))
    ended = claim("Terminated", of=spec("u-2", work_key="w"), start_time=ago(60))
    never = claim("Terminated", of=spec("u-3", work_key="w"))
    limiter = braked()
    seed_limiter(limiter, [never, claim("Claimed", of=spec("u-4", work_key="w")), launched], NOW)
    assert limiter.check(spec("u-5", work_key="w")) == ""
    limiter = braked()
    seed_limiter(limiter, [launched, never, ended], NOW)
    assert "2 launches" in limiter.check(spec("u-5", work_key="w"))


def test_launches_before_a_process_count_by_their_age():
    clock = Clock()
    limiter = braked(clock=clock)
    seed_limiter(
        limiter, [claim("Running", of=spec(f"u-{age}", work_key="w"), start_time=ago(age)) for age in (100, 300)], NOW
    )
    clock.passed = 299
    assert limiter.check(spec("u-5", work_key="w"))
    clock.passed = 301
    assert limiter.check(spec("u-5", work_key="w")) == ""


def test_a_launch_that_is_said_to_be_in_the_future_is_one_of_now():
    clock = Clock()
    limiter = braked(clock=clock)
    seed_limiter(
        limiter, [claim("Running", of=spec(f"u-{n}", work_key="w"), start_time=ago(-86400)) for n in range(2)], NOW
    )
    assert limiter.check(spec("u-5", work_key="w"))
    clock.passed = 601
    assert limiter.check(spec("u-5", work_key="w")) == ""
