"""A log is followed over cut streams: no line is lost or repeated."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from skysail.cloud.errors import OutcomeUnknown
from skysail.cloud.runpod import api, log_follower
from skysail.cloud.runpod.log_follower import LogFollower

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

NONCE = "ab" * 16


class Service:
    """Log of one pod that cuts each stream after some events. `is_inclusive`: a resumed stream repeats its cursor."""

    def __init__(self, lines: list[tuple[str, str]], *, cut: int, is_inclusive: bool) -> None:
        self._events = [api.LogEvent(id_, "container", line, float(len(id_))) for id_, line in lines]
        self._cut = cut
        self._is_inclusive = is_inclusive
        self.streams = 0

    async def logs(self, _: str, *, since: float, last_event: str = "") -> AsyncIterator[api.LogEvent]:
        self.streams += 1
        start = 0
        if last_event:
            ids = [event.id for event in self._events]
            first = ids.index(last_event)
            start = first if self._is_inclusive else first + ids.count(last_event)
        for sent, event in enumerate(self._events[start:]):
            if sent == self._cut:
                raise OutcomeUnknown("cut")
            yield event


async def followed(service: Service) -> tuple[list[str], LogFollower]:
    follower = LogFollower(service, "p", created=0.0, nonce=NONCE)  # type: ignore[arg-type]
    follower.ready.set()
    await follower.run()
    return [piece.data.decode().rstrip("\n") async for piece in follower.buffer.replay()], follower


@pytest.fixture(autouse=True)
def _no_delay(monkeypatch):
    monkeypatch.setattr(log_follower, "_FIRST_DELAY", 0.0)
    monkeypatch.setattr(log_follower, "_MAX_DELAY", 0.0)


@pytest.mark.parametrize("is_inclusive", [True, False])
@pytest.mark.parametrize("cut", [4, 5, 7, 1000])
@pytest.mark.parametrize("share", [1, 2, 3])
async def test_lines_survive_cuts_also_if_they_share_an_id(cut, share, is_inclusive):
    texts = [f"line {number}" for number in range(200)]
    lines = [(f"{number // share:05d}", text) for number, text in enumerate(texts)]
    lines.append(("99999", f"skysail-exit {NONCE} 37 exited "))
    heard, follower = await followed(Service(lines, cut=max(cut, 2 * share + 2), is_inclusive=is_inclusive))
    assert heard == texts
    assert follower.exit is not None
    assert (follower.exit.code, follower.exit.reason) == (37, "Error")


async def test_times_differ_and_are_the_same_for_every_reader():
    lines = [("1", f"line {number}") for number in range(50)] + [("2", f"skysail-exit {NONCE} 0 exited")]
    times = []
    for _ in range(2):
        _, follower = await followed(Service(lines, cut=1000, is_inclusive=False))
        times.append([piece.at async for piece in follower.buffer.replay()])
    assert times[0] == times[1] == sorted(set(times[0]))


async def test_times_rise_also_if_those_of_the_service_are_close_or_fall():
    service = Service([], cut=1000, is_inclusive=False)
    times = [10.0, 10.0, 10.0, 10.000001, 10.000002, 9.5, 0.0, 10.000003, 11.0]
    service._events = [api.LogEvent(str(number), "container", "x", at) for number, at in enumerate(times)]
    service._events.insert(3, api.LogEvent("s", "system", "pulling", 10.5))
    service._events.append(api.LogEvent("e", "container", f"skysail-exit {NONCE} 0 exited", 12.0))
    _, follower = await followed(service)
    heard = [piece.at async for piece in follower.buffer.replay()]
    assert heard == sorted(set(heard))
    assert len(heard) == len(times)
    assert (heard[0], heard[-1]) == (10.0, 11.0)
    assert heard[-2] < 10.1, "a line of the system has no time among the output"


async def test_empty_line_before_the_report_is_the_wrappers_and_others_stay():
    lines = ["a", "", "", "b", "", f"skysail-exit {NONCE} 0 exited"]
    heard, follower = await followed(
        Service([(str(number), line) for number, line in enumerate(lines)], cut=99, is_inclusive=False)
    )
    assert heard == ["a", "", "", "b"]
    assert follower.exit is not None
    assert follower.exit.reason == "Completed"


async def test_report_with_another_nonce_is_output():
    lines = [f"skysail-exit {'cd' * 16} 0 exited", f"skysail-exit {NONCE} 3 deadline 68656c70"]
    heard, follower = await followed(
        Service([(str(number), line) for number, line in enumerate(lines)], cut=99, is_inclusive=False)
    )
    assert heard == lines[:1]
    assert follower.exit is not None
    assert (follower.exit.code, follower.exit.reason, follower.exit.message) == (3, "DeadlineExceeded", "help")


async def test_second_start_is_a_restart():
    lines = [f"skysail-start {NONCE}", "a", f"skysail-start {NONCE}", "a"]
    heard, follower = await followed(
        Service([(str(number), line) for number, line in enumerate(lines)], cut=99, is_inclusive=False)
    )
    assert heard == ["a"]
    assert follower.exit is not None
    assert follower.exit.reason == "ContainerRestarted"


async def test_ids_that_come_again_are_new_lines():
    lines = [("1", "a"), ("2", "b"), ("1", "c"), ("2", "d"), ("3", f"skysail-exit {NONCE} 0 exited")]
    heard, _ = await followed(Service(lines, cut=99, is_inclusive=False))
    assert heard == ["a", "b", "c", "d"]


class Forgetful(Service):
    """A log that begins again with old lines, because it does not have the cursor any more."""

    async def logs(self, pod: str, *, since: float, last_event: str = "") -> AsyncIterator[api.LogEvent]:
        self.streams += 1
        for sent, event in enumerate(self._events):
            if sent == self._cut * self.streams:
                raise OutcomeUnknown("cut")
            yield event


@pytest.mark.parametrize("share", [1, 2, 3])
async def test_stream_that_begins_further_back_repeats_no_line_and_is_no_restart(share):
    texts = [f"skysail-start {NONCE}", *(f"line {number}" for number in range(50)), f"skysail-exit {NONCE} 0 exited"]
    service = Forgetful([], cut=10, is_inclusive=False)
    ids = [number // share for number in range(len(texts))]
    service._events = [
        api.LogEvent(f"{id_:03d}", "container", text, 100.0 + id_) for id_, text in zip(ids, texts, strict=True)
    ]
    heard, follower = await followed(service)
    assert heard == texts[1:-1]
    assert follower.exit is not None
    assert follower.exit.reason == "Completed"


async def test_stream_that_fails_in_an_unknown_way_is_continued(monkeypatch):
    lines = [(str(number), f"line {number}") for number in range(9)] + [("9", f"skysail-exit {NONCE} 0 exited")]
    monkeypatch.setattr(f"{__name__}.OutcomeUnknown", RuntimeError)
    heard, follower = await followed(Service(lines, cut=4, is_inclusive=False))
    assert heard == [line for _, line in lines[:-1]]
    assert follower.exit is not None


async def test_follower_of_a_deleted_pod_ends():
    follower = LogFollower(Service([], cut=1, is_inclusive=False), "p", created=0.0, nonce=NONCE)  # type: ignore[arg-type]
    follower.ready.set()
    follower.is_deleted = True
    async with asyncio.timeout(10):
        await follower.run()
    assert follower.done.is_set()
