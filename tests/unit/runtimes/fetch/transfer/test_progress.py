"""What is told, how often, and how long failures are borne."""

from __future__ import annotations

import json
import random

import pytest

from skysail.runtimes.fetch.errors import TransientError
from skysail.runtimes.fetch.transfer.progress import Progress, in_units
from skysail.runtimes.fetch.transfer.retry import RetryPolicy


class _Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(
    ("count", "told"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (12_345_678, "12.3 MB"), (5 * 10**15, "5000.0 TB")],
)
def test_sizes_are_told_for_people(count, told):
    assert in_units(count) == told


def test_lines_come_at_most_every_five_seconds_and_know_what_is_left():
    clock, lines = _Clock(), []
    progress = Progress(lines.append, clock)
    progress.found(40)
    progress.begin(100)
    for _ in range(30):
        clock.now += 0.5
        progress.came(1)

    told = [json.loads(line) for line in lines]
    assert [line["bytes"] for line in told] == [40, 50, 60, 70]
    assert [line["seconds_left"] for line in told] == [None, 25, 20, 15]
    assert told[-1]["message"] == "70 B of 100 B"


def test_without_a_total_nothing_is_guessed():
    clock, lines = _Clock(), []
    progress = Progress(lines.append, clock)
    progress.begin(None)
    clock.now = 6
    progress.came(10)

    assert json.loads(lines[-1]) == {"bytes": 10, "total": None, "seconds_left": None, "message": "10 B"}


async def test_failures_in_a_row_are_borne_for_so_long_and_no_longer():
    clock = _Clock()
    retry = RetryPolicy(seconds=20, clock=clock, sleep=clock.sleep, rng=random.Random(1))
    tries = 0

    async def fail():
        nonlocal tries
        tries += 1
        raise TransientError("ServerError", f"Try {tries}.")

    with pytest.raises(TransientError) as raised:
        await retry.run(fail)

    assert str(raised.value) == f"Try {tries}."
    assert 5 <= tries <= 12
    assert 13 < clock.now <= 20


async def test_what_goes_forward_is_borne_for_ever():
    clock = _Clock()
    retry = RetryPolicy(seconds=20, clock=clock, sleep=clock.sleep, rng=random.Random(1))
    for _ in range(100):
        await retry.wait(TransientError("ServerError", "No."))
        retry.reset()

    assert clock.now > 20
