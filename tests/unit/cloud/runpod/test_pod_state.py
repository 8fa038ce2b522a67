"""The start of a pod, as far as answers and its log show it."""

from __future__ import annotations

from msgspec.structs import replace

from skysail.cloud.runpod import api
from skysail.cloud.runpod.log_follower import LogFollower
from skysail.cloud.runpod.marks import Mark
from skysail.cloud.runpod.pod_state import PodState

CREATED = 1.8e9
HOUR = 3600.0
NONCE = "ab" * 16


def pod(status: str = "RUNNING", *, runtime: api.PodRuntime | None = None) -> api.Pod:
    return api.Pod(id="abc", status=status, created_at=api.timestamp(CREATED), runtime=runtime)


class Clock:
    def __init__(self, at: float) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


def tracked(shown: api.Pod, clock: Clock) -> PodState:
    follower = LogFollower(None, "abc", created=CREATED, nonce=NONCE)  # type: ignore[arg-type]
    return PodState(shown, Mark("cluster", "claim", NONCE), follower, clock)


async def test_old_pod_without_telemetry_is_not_given_up_by_a_new_process():
    clock = Clock(CREATED + HOUR)
    for shown in (pod(), pod("STARTING")):
        state = tracked(shown, clock)
        assert state.instance().exit is None
        state.update(pod(runtime=api.PodRuntime()))
        clock.at += HOUR
        state.update(shown)
        assert (state.instance().state, state.instance().exit) == ("running", None)


async def test_pod_whose_log_reports_the_start_has_started():
    clock = Clock(CREATED)
    state = tracked(pod("STARTING"), clock)
    await state.follower._take(api.LogEvent("1", "container", f"skysail-start {NONCE}", CREATED + 5))
    clock.at += HOUR
    state.update(pod())
    assert (state.instance().state, state.instance().started, state.instance().exit) == ("running", CREATED + 5, None)


async def test_pod_that_no_machine_starts_is_given_up():
    clock = Clock(CREATED + HOUR)
    state = tracked(pod("PROVISIONING"), clock)
    clock.at += 21 * 60
    state.update(pod("PROVISIONING"))
    assert state.instance().exit.reason == "StartTimeout"


async def test_log_of_a_stopped_pod_that_has_run_may_be_read_late():
    """The pod was stopped for lack of balance while no operator was there. Its program had ended before."""
    clock = Clock(CREATED + HOUR)
    stopped = replace(pod("EXITED"), started_at=api.timestamp(CREATED + 60))
    state = tracked(stopped, clock)
    clock.at += 45.0
    state.update(stopped)
    assert state.instance().exit is None
    await state.follower._take(api.LogEvent("1", "container", f"skysail-exit {NONCE} 0 exited", CREATED + 90))
    clock.at += HOUR
    state.update(stopped)
    assert (state.instance().exit.code, state.instance().exit.reason) == (0, "Completed")


async def test_stopped_pod_without_a_report_was_stopped_by_the_service():
    clock = Clock(CREATED + HOUR)
    for started, seconds in (("", 4.0), (api.timestamp(CREATED + 60), 61.0)):
        stopped = replace(pod("EXITED"), started_at=started or None)
        state = tracked(stopped, clock)
        clock.at += seconds
        state.update(stopped)
        assert state.instance().exit.reason == "ProviderStopped"


async def test_pod_of_an_unknown_status_has_not_ended():
    state = tracked(pod("DANCING"), Clock(CREATED + HOUR))
    assert (state.instance().state, state.instance().exit) == ("starting", None)
    state.update(pod(runtime=api.PodRuntime()))
    state.update(pod("DANCING"))
    assert (state.instance().state, state.instance().exit) == ("running", None)
