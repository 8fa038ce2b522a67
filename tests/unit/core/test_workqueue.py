"""The queue's rules are client-go's. Time is virtual."""

import asyncio
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from skysail.core.workqueue import WorkQueue
from tests.support import virtual_time


def queue(**options) -> WorkQueue[str]:
    return WorkQueue(rng=random.Random(7), **options)


def test_a_key_that_is_added_twice_is_handed_out_once():
    async def main():
        q = queue()
        q.add("a")
        q.add("a")
        key, _ = await q.get()
        q.done(key)
        return key, len(q), q.is_idle

    assert virtual_time.run(main()) == ("a", 0, True)


def test_a_key_that_is_added_while_a_worker_has_it_comes_again_and_not_before():
    async def main():
        q = queue()
        q.add("a")
        key, _ = await q.get()
        q.add("a")
        hidden = len(q)
        q.done(key)
        return hidden, len(q), (await q.get())[0]

    assert virtual_time.run(main()) == (0, 1, "a")


def test_a_delayed_key_comes_when_it_is_due_and_the_earlier_appointment_stands():
    async def main():
        q = queue()
        clock = asyncio.get_running_loop().time
        q.add_after("a", 30)
        q.add_after("a", 5)
        q.add_after("a", 60)
        await q.get()
        q.done("a")
        first = clock()
        q.add_after("a", 100)
        await q.get()
        return first, clock()

    assert virtual_time.run(main()) == (5, 105)


def test_waiting_time_is_told():
    async def main():
        q = queue()
        q.add("a")
        await asyncio.sleep(3)
        return await q.get()

    assert virtual_time.run(main()) == ("a", 3)


def test_workqueue_repeated_failures_back_off_up_to_the_limit():
    async def main():
        q = queue(first_delay=1.0, longest_delay=60.0)
        return [q.add_rate_limited("a") for _ in range(50)]

    delays = virtual_time.run(main())
    assert all(0.5 <= delay <= 60 for delay in delays)
    assert delays[0] <= 1
    assert max(delays) > 30


def test_a_success_makes_the_next_failure_start_small():
    async def main():
        q = queue(first_delay=1.0, longest_delay=60.0)
        for _ in range(20):
            q.add_rate_limited("a")
        q.forget("a")
        return q.add_rate_limited("a")

    assert virtual_time.run(main()) <= 1


def test_a_server_that_names_a_time_is_given_at_least_that():
    async def main():
        q = queue()
        return q.add_rate_limited("a", min_delay=17.0)

    assert virtual_time.run(main()) == 17.0


def test_a_forgotten_key_does_not_come_back():
    async def main():
        q = queue()
        q.add_after("a", 5)
        q.discard("a")
        q.add_after("b", 10)
        return (await q.get())[0]

    assert virtual_time.run(main()) == "b"


def test_a_worker_that_is_cancelled_while_it_wakes_passes_the_news_on():
    async def main():
        q = queue()
        first, second = asyncio.create_task(q.get()), asyncio.create_task(q.get())
        await asyncio.sleep(0)
        q.add("a")
        first.cancel()
        return (await second)[0]

    assert virtual_time.run(main()) == "a"


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 5)), max_size=40), st.integers(1, 4))
def test_workqueue_added_key_is_processed_after_last_add_by_one_worker_at_a_time(adds, workers):
    async def main():
        q = queue()
        clock = asyncio.get_running_loop().time
        running: set[str] = set()
        started: dict[str, float] = {}

        async def work():
            while True:
                key, _ = await q.get()
                assert key not in running
                running.add(key)
                started[key] = clock()
                await asyncio.sleep(1)
                running.discard(key)
                q.done(key)

        tasks = [asyncio.create_task(work()) for _ in range(workers)]
        last: dict[str, float] = {}
        for key, pause in adds:
            q.add(key)
            last[key] = clock()
            await asyncio.sleep(pause)
        await asyncio.sleep(100)
        assert q.is_idle
        for task in tasks:
            assert not task.done()
            task.cancel()
        return last, started

    last, started = virtual_time.run(main())
    assert last.keys() == started.keys()
    assert all(started[key] >= last[key] for key in last)
