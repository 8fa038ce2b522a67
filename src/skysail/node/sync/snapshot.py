"""What is known of one pod at one moment, and the history of each of its containers that follows from it. Pure.

Two sources tell what became of a container: the provider (and the node's memory of it), and the status that was last
written. The written one is what a node that was restarted has left; and it is what the user was told, so it holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from skysail.cloud.provider import LOST, Ended, Pending, RunId, Running, State
from skysail.node.pod_types import Container, Pod
from skysail.node.sync.unsupported_fields import UnsupportedFields

ALWAYS = "Always"
LOST_CODE = 137
# A container that ran for so long was healthy: what happens next is a new story.
_HEALTHY_SECONDS = 600.0
_INITIAL_BACKOFF = 10.0
_MAX_BACKOFF = 300.0
# So many short runs in a row have the longest pause: what was before them changes nothing.
REMEMBERED = 8


class StartBackoff(msgspec.Struct, frozen=True):
    """Why a start did not succeed, and when it is tried again."""

    reason: str
    message: str
    retry_at: float


class ProbeState(msgspec.Struct, frozen=True, kw_only=True):
    """What the probes of a run say. `failure` is why it must be ended, within `grace` where the probe names one."""

    started: bool = True
    ready: bool = True
    failure: str = ""
    grace: int | None = None


HEALTHY = ProbeState()


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All that a plan is made from.

    `active_seconds` is for how long the pod has been here: `now` may jump, and that ends nothing. `runs` are the pod's,
    from a
    complete listing; `stops` tells for each run that was asked to end when it will be ended; `waiting` is by container,
    and under the empty name for the pod itself.
    """

    pod: Pod
    now: float
    active_seconds: float
    host_ip: str
    runs: Mapping[RunId, State]
    # None while there is no place for the pod; empty where its place has no address in the cluster.
    address: str | None = None
    starting: frozenset[RunId] = frozenset()
    stops: Mapping[RunId, float] = msgspec.field(default_factory=dict)
    health: Mapping[RunId, ProbeState] = msgspec.field(default_factory=dict)
    waiting: Mapping[str, StartBackoff] = msgspec.field(default_factory=dict)
    unsupported: UnsupportedFields = UnsupportedFields()
    # Runs whose place was lost, with all that they left there.
    lost_runs: frozenset[RunId] = frozenset()

    def run(self, container: str, number: int) -> RunId:
        return RunId(self.pod.metadata.uid, container, number)


class RunHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The latest run of a container: -1 where there was none yet. `short_run_count` counts the short runs up to it."""

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
        """Whether there is a run that has not ended, be it that it runs or that it will."""
        return isinstance(self.state, (Pending, Running))

    @property
    def next(self) -> int:
        """The run to start next: the same one again, where the provider forgot what it is."""
        return self.number if is_forgotten(self.state) else self.number + 1

    @property
    def has_started(self) -> int:
        """The latest run that is more than a wish."""
        return self.number - 1 if isinstance(self.state, Pending) else self.number

    @property
    def restart_delay(self) -> float:
        """How long to wait after the end before the next start: not at all at first, then longer each time."""
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
        state = written.state  # told is told: an end is never taken back
    previous = known.get(number - 1)
    if not isinstance(previous, Ended):
        previous = written.ended if written.number == number - 1 else written.previous
    streak = _streak(number, {**known, number: state})
    return RunHistory(number=number, state=state, previous=previous, short_run_count=streak)


def histories(snapshot: Snapshot) -> dict[str, RunHistory]:
    spec = snapshot.pod.spec
    return {c.name: history(snapshot, c.name) for c in (*spec.init_containers, *spec.containers)}


def started_runs(pod: Pod) -> frozenset[RunId]:
    """The latest run of each container, where the status tells of one."""
    numbers = {c.name: _written(pod, c.name).number for c in (*pod.spec.init_containers, *pod.spec.containers)}
    return frozenset(RunId(pod.metadata.uid, name, number) for name, number in numbers.items() if number >= 0)


def age(pod: Pod, now: float) -> float:
    """How long the pod was here before this process saw it, by the clocks that wrote it down: there is no other."""
    return max(0.0, now - seconds(pod.status.start_time)) if pod.status.start_time else 0.0


def lost_runs(pod: Pod, known: Mapping[RunId, State], now: float) -> dict[RunId, Ended]:
    """Runs that were told to be running and that the provider does not know any more. Only after a complete listing."""
    found = {}
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        written = _written(pod, container.name)
        run = RunId(pod.metadata.uid, container.name, written.number)
        if isinstance(written.state, Running) and run not in known:
            found[run] = lost_state(written.state, now)
    return found


def lost_state(state: Pending | Running, now: float) -> Ended:
    message = "The node lost this container: its process ended together with the node's agent, or unseen by it."
    started, image = (state.started, state.image_id) if isinstance(state, Running) else (None, "")
    return Ended(code=LOST_CODE, reason=LOST, message=message, started=started, ended=now, image_id=image)


def is_sidecar(container: Container) -> bool:
    """An init container that stays: the pod goes on when it has started, and ends without waiting for it."""
    return container.restart_policy == ALWAYS


def seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()


def timestamp(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _streak(number: int, known: Mapping[int, State | None]) -> int:
    """Short runs in a row, the latest included. One that nobody remembers counts as short."""
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
    """What the status says of a container."""
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
    """Whether the provider has to be told once more what to run."""
    return isinstance(state, Pending) and state.needs_restart_spec
