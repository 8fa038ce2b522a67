"""Probes: when a run is started, ready, and alive."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from skysail.node.pod_types import Container
from skysail.node.probes import prober
from skysail.node.sync.snapshot import ProbeState
from tests.support import virtual_time
from tests.unit.node.pods import container

EVERY_SECOND = {"exec": {"command": ["x"]}, "periodSeconds": 1}


def parsed(**fields) -> Container:
    return msgspec.convert(container("main", **fields), Container)


class Answers:
    """Answers by the clock: `bad` tells whether the answer at a moment is a refusal."""

    def __init__(self, bad) -> None:
        self._bad = bad
        self.asked: list[float] = []

    async def __call__(self, _action, _timeout: float) -> str:
        now = asyncio.get_running_loop().time()
        self.asked.append(now)
        return "no" if self._bad(now) else ""


def watched(
    fields: dict, bad, seconds: float = 60.0, *, complaints: list | None = None
) -> list[tuple[float, ProbeState]]:
    """What was told, and when."""
    told = []
    heard = [] if complaints is None else complaints

    async def play() -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                await prober.run_probes(
                    parsed(**fields),
                    Answers(bad),
                    lambda health: told.append((loop.time(), health)),
                    lambda why: heard.append((loop.time(), why)),
                )
        except TimeoutError:
            pass

    virtual_time.run(play())
    return told


def test_a_run_without_probes_is_healthy_from_the_start():
    assert prober.initial_state(parsed()) == ProbeState()


def test_a_run_is_unready_until_its_probe_has_passed():
    assert prober.initial_state(parsed(readinessProbe=EVERY_SECOND)) == ProbeState(ready=False)
    told = watched({"readinessProbe": {**EVERY_SECOND, "initialDelaySeconds": 5}}, lambda _: False)
    assert told == [(5.0, ProbeState(ready=True))]


def test_readiness_is_lost_after_enough_failures_and_comes_back_at_once():
    told = watched({"readinessProbe": {**EVERY_SECOND, "failureThreshold": 3}}, lambda now: 10 <= now < 20)
    assert [(at, probe_state.ready) for at, probe_state in told] == [(0.0, True), (12.0, False), (20.0, True)]


def test_success_may_have_to_be_repeated():
    told = watched({"readinessProbe": {**EVERY_SECOND, "successThreshold": 3}}, lambda now: now < 4)
    assert told == [(6.0, ProbeState(ready=True))]


def test_a_dead_run_is_told_once():
    told = watched({"livenessProbe": {**EVERY_SECOND, "failureThreshold": 2}}, lambda now: now >= 7)
    assert told == [(8.0, ProbeState(failure="Liveness probe failed: no"))]


def test_a_failure_that_passes_is_forgiven():
    assert watched({"livenessProbe": {**EVERY_SECOND, "failureThreshold": 2}}, lambda now: now % 2) == []


def test_nothing_else_is_asked_before_the_start():
    told = watched(
        {
            "startupProbe": {**EVERY_SECOND, "failureThreshold": 30},
            "livenessProbe": {**EVERY_SECOND, "failureThreshold": 1},
        },
        lambda now: now < 10,
    )
    assert told == [(10.0, ProbeState(started=True))]


def test_a_run_that_does_not_start_is_ended():
    told = watched({"startupProbe": {**EVERY_SECOND, "failureThreshold": 3}}, lambda _: True)
    assert told == [(2.0, ProbeState(started=False, failure="Startup probe failed: no"))]


def test_a_probe_may_name_the_time_that_a_run_has_to_end():
    probe = {**EVERY_SECOND, "failureThreshold": 1, "terminationGracePeriodSeconds": 3}
    assert [probe_state.grace for _, probe_state in watched({"livenessProbe": probe}, lambda _: True)] == [3]
    assert [probe_state.grace for _, probe_state in watched({"startupProbe": probe}, lambda _: True)] == [3]


@pytest.mark.parametrize("name", ["startup", "readiness", "liveness"])
def test_every_bad_answer_is_complained_of_before_enough_of_them_have_a_consequence(name):
    complaints = []
    watched(
        {f"{name}Probe": {**EVERY_SECOND, "failureThreshold": 5}},
        lambda now: now < 2,
        complaints=complaints,
    )
    assert complaints == [(at, f"{name.capitalize()} probe failed: no") for at in (0.0, 1.0)]


def test_check_that_could_not_run_counts_as_no_result():
    async def check(_action, _timeout: float) -> str | None:
        return None

    seen, failures = [], []

    async def run() -> None:
        of = parsed(livenessProbe={**EVERY_SECOND, "failureThreshold": 1}, readinessProbe=EVERY_SECOND)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60.0):
                await prober.run_probes(of, check, seen.append, failures.append)

    virtual_time.run(run())
    assert (seen, failures) == ([], [])
