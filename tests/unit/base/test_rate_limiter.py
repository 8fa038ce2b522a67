from __future__ import annotations

from skysail.base.rate_limiter import Ration


def taken(ration: Ration, now: float, tries: int = 100) -> int:
    return sum(ration.try_acquire(now) for _ in range(tries))


def test_after_a_quiet_time_some_more_are_done_at_once() -> None:
    ration = Ration(rate=2.0, burst=5.0)
    assert taken(ration, 100.0) == 5
    assert taken(ration, 1100.0) == 5, "what was not used is not saved up for ever"


def test_while_much_happens_there_are_so_many_a_second() -> None:
    ration = Ration(rate=2.0, burst=5.0)
    taken(ration, 100.0)
    done = sum(taken(ration, 100.0 + step / 8, 3) for step in range(1, 81))
    assert done == 20
