"""Requests gather while the model runs, and nobody pays for another."""

from __future__ import annotations

import asyncio
import time
from threading import Event, current_thread
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skysail.runtimes.model_server.errors import ClientDisconnected, ModelError, RequestError
from skysail.runtimes.model_server.inference.batcher import Batcher, BatchTiming
from skysail.runtimes.model_server.inference.queue import InferenceResult, QueueLimits
from skysail.runtimes.model_server.metrics import Metrics
from skysail.runtimes.model_server.protocol.input_validation import InferenceInput

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Slow:
    """A model that doubles, and waits to be let go on. Negative input is a mistake to it."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.entered = Event()
        self.released = Event()

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        self.batches.append(len(arrays[0]))
        self.entered.set()
        assert self.released.wait(60)
        if (arrays[0] < 0).any():
            raise ValueError("negative")
        return [arrays[0] * 2]


def batcher(run, *, pace=None, clock=time.perf_counter, **bounds) -> Batcher:
    metrics = Metrics(lambda: 0.0, {})
    pace = pace or BatchTiming(max_wait=0.0, pause_share=0.0, quick=0.0)
    return Batcher(run, QueueLimits(**{"batch_rows": 512, "queue_rows": 1000} | bounds), metrics, pace, clock)


def work(*rows: float, width: int = 1) -> InferenceInput:
    return InferenceInput((np.array([[row] * width for row in rows], np.float32),), len(rows), kind=width)


def stays() -> bool:
    return False


class Job:
    """One that waits. `answer` can be awaited."""

    def __init__(self, of: InferenceInput, has_left: Callable[[], bool]) -> None:
        self.work = of
        self.has_left = has_left
        self.since = time.perf_counter()
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def settle(self, outcome: InferenceResult) -> None:
        if isinstance(outcome, Exception):
            self.answer.set_exception(outcome)
        else:
            self.answer.set_result(outcome)


def asked(queue: Batcher, of: InferenceInput, has_left: Callable[[], bool]) -> asyncio.Future[Any]:
    job = Job(of, has_left)
    queue.submit(job)
    return job.answer


class Mute(BaseException):
    """As Rust's panics are."""

    def __str__(self) -> str:
        raise KeyboardInterrupt


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), Mute()])
async def test_whatever_a_model_raises_fails_its_request_and_no_other(error):
    def leaves(arrays: Sequence[Any]) -> list[Any]:
        if (arrays[0] < 0).any():
            raise error
        return [arrays[0]]

    queue = batcher(leaves)
    with pytest.raises(ModelError):
        await asked(queue, work(-1), stays)
    assert (await asked(queue, work(1), stays))[0].tolist() == [[1.0]]
    queue.close()


async def begun(model: Slow, queue: Batcher) -> asyncio.Future[Any]:
    """The model is busy with a first request."""
    first = asked(queue, work(100), stays)
    await asyncio.to_thread(model.entered.wait, 60)
    return first


async def test_a_request_that_finds_the_model_idle_does_not_wait():
    model = Slow()
    model.released.set()
    queue = batcher(model)
    assert (await asked(queue, work(1, 2), stays))[0].tolist() == [[2], [4]]
    queue.close()


async def test_a_quick_model_is_run_without_a_thread_once_that_is_known():
    where: list[str] = []

    def model(arrays: Sequence[Any]) -> list[Any]:
        where.append(current_thread().name)
        if (arrays[0] < 0).any():
            raise ValueError("negative")
        return [arrays[0]]

    queue = batcher(model, pace=BatchTiming(quick=3600, habit=1))
    with pytest.raises(ModelError):
        await asked(queue, work(-1), stays)  # which tells nothing about how long others take
    for each in (
        work(1),
        work(2),
        work(-1),
        work(3),
        work(1, width=2),
        work(1, width=2),
        InferenceInput(work(1).arrays, 1),
    ):
        await asyncio.gather(asked(queue, each, stays), return_exceptions=True)
    assert where == ["inference", "inference", *["MainThread"] * 3, "inference", "MainThread", "inference"]
    queue.close()


async def test_a_model_whose_time_depends_on_the_values_holds_up_the_loop_once_at_most():
    where: list[str] = []

    def model(arrays: Sequence[Any]) -> list[Any]:
        where.append(current_thread().name)
        until = time.thread_time() + float(arrays[0][0, 0])
        while time.thread_time() < until:
            pass
        return [arrays[0]]

    queue = batcher(model, pace=BatchTiming(quick=0.005, habit=8))
    slow = ""
    while slow != "MainThread":  # where the machine is busy, what is quick may look slow for once
        await asked(queue, work(0), stays)
        while where[-1] == "inference":
            await asked(queue, work(0), stays)
        assert len(where) > 8
        await asked(queue, work(0.06), stays)
        slow = where[-1]
    where.clear()
    for _ in range(20):
        await asked(queue, work(0), stays)
    assert set(where) == {"inference"}
    queue.close()


async def test_a_batch_that_would_take_long_is_given_to_the_thread():
    where: list[str] = []

    def model(arrays: Sequence[Any]) -> list[Any]:
        where.append(current_thread().name)
        return [arrays[0]]

    queue = batcher(model, pace=BatchTiming(quick=1.0, habit=1))
    await asked(queue, work(1), stays)
    await asked(queue, work(1), stays)
    many = work(1)
    await asked(queue, InferenceInput(many.arrays, 10**9, many.kind), stays)
    assert where == ["inference", "MainThread", "inference"]
    queue.close()


async def test_who_was_answered_together_comes_again_together():
    model = Slow()
    queue = batcher(model, pace=BatchTiming(pause_share=1e9, longest_pause=600))
    first = await begun(model, queue)
    both = [asked(queue, work(number), stays) for number in (1, 2)]
    model.released.set()
    await first
    await asyncio.gather(*both, asked(queue, work(3), stays))
    model.batches.clear()
    more = [asked(queue, work(number), stays) for number in (4, 5, 6)]
    await asyncio.gather(*more)
    assert model.batches == [3]
    queue.close()


async def test_what_came_while_the_model_ran_goes_together():
    model = Slow()
    queue = batcher(model)
    first = await begun(model, queue)
    others = [asked(queue, work(number, number), stays) for number in range(3)]
    assert queue.waiting == 3
    model.released.set()
    answers = [(await answer)[0].tolist() for answer in (first, *others)]
    assert answers == [[[200]], [[0], [0]], [[2], [2]], [[4], [4]]]
    assert model.batches == [1, 6]
    queue.close()


async def test_who_was_just_answered_goes_along_with_those_who_waited():
    model = Slow()
    queue = batcher(model, pace=BatchTiming(pause_share=1e9, longest_pause=600))
    first = await begun(model, queue)
    waited = asked(queue, work(1), stays)
    model.released.set()
    await first
    again = asked(queue, work(2), stays)
    assert ((await waited)[0].tolist(), (await again)[0].tolist()) == ([[2]], [[4]])
    assert model.batches == [1, 2]
    queue.close()


async def test_who_does_not_come_again_is_not_waited_for():
    model = Slow()
    queue = batcher(model, pace=BatchTiming(pause_share=1e9, longest_pause=0.001))
    first = await begun(model, queue)
    waited = asked(queue, work(1), stays)
    model.released.set()
    await first
    assert (await waited)[0].tolist() == [[2]]
    queue.close()


async def test_a_full_batch_waits_for_nobody():
    model = Slow()
    queue = batcher(model, batch_rows=2, pace=BatchTiming(pause_share=1e9, longest_pause=600))
    first = await begun(model, queue)
    waited = [asked(queue, work(number), stays) for number in (1, 2)]
    model.released.set()
    await asyncio.gather(first, *waited)
    assert model.batches == [1, 2]
    queue.close()


async def test_no_more_rows_than_allowed_go_together():
    model = Slow()
    queue = batcher(model, batch_rows=4)
    first = await begun(model, queue)
    others = [asked(queue, work(1, 1), stays) for _ in range(3)]
    many = asked(queue, work(*range(9)), stays)
    model.released.set()
    await asyncio.gather(first, many, *others)
    assert model.batches == [1, 4, 2, 9]
    queue.close()


async def test_a_model_that_joins_nothing_gets_one_request_after_another():
    model = Slow()
    queue = batcher(model, batch_rows=0)
    first = await begun(model, queue)
    others = [asked(queue, work(1), stays) for _ in range(3)]
    model.released.set()
    await asyncio.gather(first, *others)
    assert model.batches == [1, 1, 1, 1]
    queue.close()


async def test_works_of_different_kinds_and_of_none_do_not_go_together():
    model = Slow()
    queue = batcher(model)
    first = await begun(model, queue)
    of_no_kind = [InferenceInput(work(1).arrays, 1) for _ in range(2)]
    others = [asked(queue, each, stays) for each in (work(1), work(1), work(1, width=2), *of_no_kind)]
    model.released.set()
    answers = await asyncio.gather(first, *others)
    assert [answer[0].shape for answer in answers] == [(1, 1), (1, 1), (1, 1), (1, 2), (1, 1), (1, 1)]
    assert model.batches == [1, 2, 1, 1, 1]
    queue.close()


async def test_too_much_that_waits_is_refused_at_once():
    model = Slow()
    queue = batcher(model, queue_rows=4)
    first = await begun(model, queue)
    fits = [asked(queue, work(1, 1), stays) for _ in range(2)]
    with pytest.raises(RequestError, match="Too many requests wait") as request_error:
        asked(queue, work(1), stays)
    assert request_error.value.status == 503
    assert request_error.value.retry_after >= 1
    model.released.set()
    await asyncio.gather(first, *fits)
    await asked(queue, work(1), stays)
    queue.close()


class Clock:
    """Goes on only where it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def steady(clock: Clock, per_row: float, batches: list[int]) -> Callable[[Sequence[Any]], list[Any]]:
    """A model that takes as long for each row."""

    def run(arrays: Sequence[Any]) -> list[Any]:
        batches.append(len(arrays[0]))
        clock.now += per_row * len(arrays[0])
        return [arrays[0]]

    return run


async def test_a_batch_has_no_more_rows_than_take_as_long_as_it_may():
    clock, batches = Clock(), list[int]()
    queue = batcher(steady(clock, 0.125, batches), clock=clock, batch_seconds=1.25)
    await asked(queue, work(1), stays)
    await asyncio.gather(*(asked(queue, work(1), stays) for _ in range(25)))
    assert batches == [1, 10, 10, 5]
    queue.close()


async def test_who_would_have_to_wait_too_long_is_refused_at_once():
    clock = Clock()
    queue = batcher(steady(clock, 0.125, []), clock=clock, batch_seconds=1.0, queue_seconds=5.0)
    await asked(queue, work(1), stays)
    await asyncio.gather(*(asked(queue, work(1), stays) for _ in range(60)))  # before anybody could know
    waits = [asked(queue, work(1), stays) for _ in range(41)]
    with pytest.raises(RequestError, match="Too many requests wait") as request_error:
        asked(queue, work(1), stays)
    assert (request_error.value.status, request_error.value.retry_after) == (503, 6)
    await asyncio.gather(*waits)
    queue.close()


async def test_a_burst_is_not_refused_for_what_one_row_alone_took():
    """Many rows together may take as long as one."""
    clock = Clock()

    def run(arrays: Sequence[Any]) -> list[Any]:
        clock.now += 0.1
        return [arrays[0]]

    queue = batcher(run, clock=clock, batch_seconds=1.0, queue_seconds=5.0)
    await asked(queue, work(1), stays)
    await asyncio.gather(*(asked(queue, work(1), stays) for _ in range(900)))
    assert clock.now < 1001
    queue.close()


async def test_nobody_joins_those_who_wait_for_a_batch_that_takes_too_long_already():
    model, clock = Slow(), Clock()
    queue = batcher(model, clock=clock, queue_seconds=5.0)
    first = await begun(model, queue)
    waits = asked(queue, work(1), stays)
    clock.now += 5.1
    with pytest.raises(RequestError):
        asked(queue, work(1), stays)
    model.released.set()
    await asyncio.gather(first, waits)
    queue.close()


def sized(rows: int, size: int) -> InferenceInput:
    return InferenceInput(work(*range(rows)).arrays, rows, kind=1, size=size)


async def test_bytes_are_bounded_as_well_in_a_batch_and_in_what_waits():
    model = Slow()
    queue = batcher(model, batch_bytes=100, queue_bytes=250)
    first = await begun(model, queue)
    waits = [asked(queue, sized(1, 50), stays) for _ in range(3)] + [asked(queue, sized(1, 100), stays)]
    with pytest.raises(RequestError, match="Too many requests wait"):
        asked(queue, sized(1, 1), stays)
    model.released.set()
    await asyncio.gather(first, *waits)
    assert model.batches == [1, 2, 1, 1]
    queue.close()


async def test_a_request_larger_than_the_queue_is_taken_by_an_idle_server():
    model = Slow()
    model.released.set()
    queue = batcher(model, queue_rows=2)
    assert len((await asked(queue, work(1, 2, 3), stays))[0]) == 3
    queue.close()


async def test_one_bad_request_does_not_spoil_the_others():
    model = Slow()
    queue = batcher(model)
    first = await begun(model, queue)
    good, bad, other = (asked(queue, work(number), stays) for number in (1, -1, 2))
    model.released.set()
    await first
    assert ((await good)[0].tolist(), (await other)[0].tolist()) == ([[2]], [[4]])
    with pytest.raises(ModelError, match="negative"):
        await bad
    queue.close()


async def test_nothing_is_computed_for_who_has_left():
    model = Slow()
    queue = batcher(model)
    first = await begun(model, queue)
    left = asked(queue, work(1), lambda: True)
    stayed = asked(queue, work(7), stays)
    model.released.set()
    await first
    with pytest.raises(ClientDisconnected):
        await left
    assert (await stayed)[0].tolist() == [[14]]
    assert model.batches == [1, 1]
    queue.close()


async def test_a_model_that_loses_rows_when_joined_is_asked_one_by_one():
    model = Slow()
    queue = batcher(lambda arrays: [output[:1] for output in model(arrays)])
    first = await begun(model, queue)
    others = [asked(queue, work(number), stays) for number in (1, 2)]
    model.released.set()
    await first
    assert [(await answer)[0].tolist() for answer in others] == [[[2]], [[4]]]
    queue.close()


@given(st.lists(st.integers(1, 5), min_size=1, max_size=30), st.integers(0, 8))
@settings(deadline=None, max_examples=30)
def test_everybody_gets_their_own_answer(sizes, batch_rows):
    async def ask_all() -> None:
        queue = batcher(lambda arrays: [arrays[0] * 2], batch_rows=batch_rows)
        wanted = [work(*(10 * place + row for row in range(size))) for place, size in enumerate(sizes)]
        answers = await asyncio.gather(*(asked(queue, each, stays) for each in wanted))
        for each, answer in zip(wanted, answers, strict=True):
            np.testing.assert_array_equal(answer[0], each.arrays[0] * 2)
        queue.close()

    asyncio.run(ask_all())
