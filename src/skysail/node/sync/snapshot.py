"""Snapshot of one pod at one moment, and the history of each of its containers that follows from it. Pure.

The history has two sources: the provider (and the node's memory of it), and the status that was last written. A
restarted node has only the written status. The end of a run in the written status is final, because users have seen it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from skysail.cloud.provider import HANDLER_NOT_FOUND, LOST, Ended, Pending, RunId, Running, State
from skysail.node.pod_types import Container, Pod
from skysail.node.sync.unsupported_fields import UnsupportedFields

ALWAYS = "Always"
LOST_CODE = 137
# A container that ran this long was healthy: the backoff starts again from zero.
_HEALTHY_SECONDS = 600.0
_INITIAL_BACKOFF = 10.0
_MAX_BACKOFF = 300.0
# After this many short runs in a row the backoff is at its maximum: earlier runs do not matter.
REMEMBERED = 8


class StartBackoff(msgspec.Struct, frozen=True):
    """Reason of a failed start, and the time of the next attempt."""

    reason: str
    message: str
    retry_at: float


class ProbeState(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a run's probes. `failure` is the reason to stop the run, within `grace` if the probe has one."""

    started: bool = True
    ready: bool = True
    failure: str = ""
    grace: int | None = None


HEALTHY = ProbeState()


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Input of a plan.

    `active_seconds` is how long the pod has been on the node; `now` may jump and must not end a pod. `runs` are the
    pod's, from a complete listing. `stops` has the time by which each stopping run will be killed. `waiting` is by
    container; the empty name is the pod sandbox. `image_progress` has the newest step of each image build.
    """

    pod: Pod
    now: float
    active_seconds: float
    host_ip: str
    runs: Mapping[RunId, State]
    # None without a pod sandbox; empty if the sandbox has no address in the cluster.
    address: str | None = None
    starting: frozenset[RunId] = frozenset()
    stops: Mapping[RunId, float] = msgspec.field(default_factory=dict)
    health: Mapping[RunId, ProbeState] = msgspec.field(default_factory=dict)
    waiting: Mapping[str, StartBackoff] = msgspec.field(default_factory=dict)
    image_progress: Mapping[str, str] = msgspec.field(default_factory=dict)
    unsupported: UnsupportedFields = UnsupportedFields()
    # Runs whose pod sandbox was lost, with all files that they left in it.
    lost_runs: frozenset[RunId] = frozenset()

    def run(self, container: str, number: int) -> RunId:
        return RunId(self.pod.metadata.uid, container, number)


class RunHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The latest run of a container; -1 without a run. `short_run_count` is the number of short runs in a row."""

    number: int = -1
    state: State | None = None
    previous: Ended | None = None
    short_run_count: int = 0

    @property
    def ended(self) -> Ended | None:
        return self.state if isinstance(self.state, Ended) else None

    @property
    def is_running(self) -> bool:
        return isinstance(self.state, Running)

    @property
    def is_live(self) -> bool:
        """Return whether the latest run has not ended: it runs or is pending."""
        return isinstance(self.state, (Pending, Running))

    @property
    def next(self) -> int:
        """Return the number of the next run to start: the same number if the provider has lost the run's spec."""
        return self.number if is_forgotten(self.state) else self.number + 1

    @property
    def has_started(self) -> int:
        """Return the number of the latest run that has started; a pending run has not."""
        return self.number - 1 if isinstance(self.state, Pending) else self.number

    @property
    def restart_delay(self) -> float:
        """Return the delay between the end of a run and the next start: zero at first, then longer each time."""
        if self.short_run_count < 2:  # noqa: PLR2004 (the first restart comes at once)
            return 0.0
        return float(min(_MAX_BACKOFF, _INITIAL_BACKOFF * 2.0 ** min(self.short_run_count - 2, 10)))


def history(snapshot: Snapshot, container: str) -> RunHistory:
    written = _written(snapshot.pod, container)
    known = {run.number: state for run, state in snapshot.runs.items() if run.container == container}
    number = max((written.number, *known))
    if number < 0:
        return written
    state = known.get(number, written.state)
    if number == written.number and written.ended:
        state = written.state  # an end in the written status is final
    previous = known.get(number - 1)
    if not isinstance(previous, Ended):
        previous = written.ended if written.number == number - 1 else written.previous
    streak = _streak(number, {**known, number: state})
    return RunHistory(number=number, state=state, previous=previous, short_run_count=streak)


def histories(snapshot: Snapshot) -> dict[str, RunHistory]:
    spec = snapshot.pod.spec
    return {c.name: history(snapshot, c.name) for c in (*spec.init_containers, *spec.containers)}


def started_runs(pod: Pod) -> frozenset[RunId]:
    """Return the latest run of each container that has one in the written status."""
    numbers = {c.name: _written(pod, c.name).number for c in (*pod.spec.init_containers, *pod.spec.containers)}
    return frozenset(RunId(pod.metadata.uid, name, number) for name, number in numbers.items() if number >= 0)


def age(pod: Pod, now: float) -> float:
    """Return how long the pod was on the node before this process saw it, by wall clock: no other time is stored."""
    return max(0.0, now - seconds(pod.status.start_time)) if pod.status.start_time else 0.0


def lost_runs(pod: Pod, known: Mapping[RunId, State], now: float) -> dict[RunId, Ended]:
    """Return runs that run in the written status but are not at the provider. Requires a complete listing."""
    found = {}
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        written = _written(pod, container.name)
        run = RunId(pod.metadata.uid, container.name, written.number)
        if isinstance(written.state, Running) and run not in known:
            found[run] = lost_state(written.state, now)
    return found


def lost_state(state: Pending | Running, now: float) -> Ended:
    message = "The node lost this container: its process ended with the node's agent, or unnoticed by the agent."
    started, image = (state.started, state.image_id) if isinstance(state, Running) else (None, "")
    return Ended(code=LOST_CODE, reason=LOST, message=message, started=started, ended=now, image_id=image)


def is_sidecar(container: Container) -> bool:
    """Return whether this init container is a sidecar: the pod waits for its start, but not for its end."""
    return container.restart_policy == ALWAYS


def is_hopeless(end: Ended) -> bool:
    """Return whether each further run of the same pod would end as this one, and only cost money."""
    return end.reason == HANDLER_NOT_FOUND


def seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()


def timestamp(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _streak(number: int, known: Mapping[int, State | None]) -> int:
    """Return the number of short runs in a row, including the latest. A run without a known state counts as short."""
    count = 0
    for earlier in range(number, -1, -1):
        state = known.get(earlier)
        if isinstance(state, (Pending, Running)):
            continue
        if isinstance(state, Ended) and state.started and state.ended - state.started >= _HEALTHY_SECONDS:
            break
        count += 1
    return count


def _written(pod: Pod, container: str) -> RunHistory:
    """Return the history of a container according to the written status."""
    entries = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    entry: dict[str, Any] = next((row for row in entries if row["name"] == container), {})
    state, last = entry.get("state") or {}, entry.get("lastState") or {}
    number = entry.get("restartCount", 0)
    image = entry.get("imageID") or ""
    previous = _ended(last["terminated"], image) if "terminated" in last else None
    if "running" in state:
        started = seconds(state["running"]["startedAt"])
        return RunHistory(number=number, state=Running(started, image), previous=previous)
    if "terminated" in state:
        return RunHistory(number=number, state=_ended(state["terminated"], image), previous=previous)
    if previous is not None:
        return RunHistory(number=number, state=previous)
    return RunHistory()


def _ended(entry: dict[str, Any], image_id: str) -> Ended:
    finished = entry.get("finishedAt")
    started = entry.get("startedAt")
    return Ended(
        code=entry["exitCode"],
        reason=entry.get("reason") or "",
        message=entry.get("message") or "",
        started=seconds(started) if started else None,
        ended=seconds(finished) if finished else 0.0,
        image_id=image_id,
    )


def is_forgotten(state: State | None) -> bool:
    """Return whether the provider has lost the spec of a pending run, so that it must be started again."""
    return isinstance(state, Pending) and state.needs_restart_spec
