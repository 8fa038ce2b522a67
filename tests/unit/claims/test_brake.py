"""How many launches are too many."""

from __future__ import annotations

from datetime import timedelta

import pytest

from skysail.claims.brake import Brake, Limit, Limits
from skysail.claims.calls import seed
from skysail.claims.types import Beneficiary, CloudInstanceSpec
from tests.unit.claims.stock import NOW, ago, claim, spec

LIMITS = Limits(
    object=Limit(2, timedelta(minutes=10)),
    namespace=Limit(4, timedelta(hours=1)),
    cloud=Limit(6, timedelta(hours=1)),
)


def braked(*launches) -> Brake:
    brake = Brake(LIMITS)
    for of, at in launches:
        brake.count(of, at)
    return brake


def before(seconds: float):
    return NOW - timedelta(seconds=seconds)


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
    told = braked(*launches).verdict(spec(), NOW)
    assert sentence in told
    assert bool(told) == bool(sentence)


def test_the_next_one_is_told_and_comes():
    brake = braked((spec(), before(500)), (spec(), before(100)))
    assert "at 12:01:40 UTC" in brake.verdict(spec(), NOW)
    assert brake.verdict(spec(), NOW + timedelta(seconds=100)) == ""


def test_pods_that_do_the_same_work_are_one_object():
    brake = braked((spec("u-1", work="job/0"), before(1)), (spec("u-2", work="job/0"), before(1)))
    assert brake.verdict(spec("u-3", work="job/0"), NOW)
    assert not brake.verdict(spec("u-1"), NOW)


def test_what_came_to_nothing_does_not_count():
    brake = braked((spec(), before(2)), (spec(), before(1)))
    brake.take_back(spec(), before(1))
    assert brake.verdict(spec(), NOW) == ""
    brake.take_back(spec(), before(77))
    brake.count(spec(), NOW)
    assert brake.verdict(spec(), NOW)


def test_launches_are_counted_in_whatever_order_they_are_told():
    brake = braked((spec(), before(1)), (spec(), before(3000)), (spec(), before(2)))
    assert "2 launches" in brake.verdict(spec(), NOW)


@pytest.mark.parametrize(("jump", "waits"), [(-60, True), (-86400, False), (86400, False)])
def test_a_clock_that_jumps_does_not_stop_launches_for_longer_than_the_limit(jump, waits):
    brake = braked((spec(), NOW), (spec(), NOW))
    assert bool(brake.verdict(spec(), NOW + timedelta(seconds=jump))) is waits


def test_what_is_long_ago_is_forgotten_whoever_it_was_for():
    brake = braked(*((other(str(n), str(n)), before(4000)) for n in range(50)), (spec(), NOW))
    assert len(brake._launches) == 3


def test_a_new_process_knows_of_the_launches_before_it_also_of_those_that_ended():
    brake = Brake(LIMITS)
    launched = claim("Launching", nonce="theirs", of=spec("u-1", work="w"))
    ended = claim("Terminated", of=spec("u-2", work="w"), start_time=ago(60))
    never = claim("Terminated", of=spec("u-3", work="w"))
    seed(brake, [never, claim("Claimed", of=spec("u-4", work="w")), launched])
    assert brake.verdict(spec("u-5", work="w"), NOW) == ""
    brake = Brake(LIMITS)
    seed(brake, [launched, never, ended])
    assert "2 launches" in brake.verdict(spec("u-5", work="w"), NOW)
