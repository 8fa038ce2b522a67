"""What a kubelet decides: from a snapshot of one pod to the next steps, the status to show, and when to look again.

Pure. Init containers come in order, sidecars stay, the others run side by side; who ended runs again as the pod's
restart policy says; a pod that is deleted, late or done is ended, and only the end of every run makes its status final.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from skysail.cloud.provider import EVICTED, LOST, NO_CAPACITY, Ended, RunId
from skysail.node.pod_types import Container, Pod
from skysail.node.sync import status as pod_status
from skysail.node.sync.snapshot import HEALTHY, RunHistory, Snapshot, histories, is_sidecar, seconds

_DEFAULT_GRACE = 30.0


class CreateSandbox(msgspec.Struct, frozen=True, tag=True):
    """Make the place."""


class Start(msgspec.Struct, frozen=True, tag=True):
    container: str
    number: int


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Ask a run to end within `grace` seconds. `why` is for the user."""

    run: RunId
    grace: float
    why: str


class RemoveSandbox(msgspec.Struct, frozen=True, tag=True):
    """Take the place away. No run is left in it."""


class DeletePod(msgspec.Struct, frozen=True, tag=True):
    """Let the API server forget this very pod: without grace, and by its UID. After the last status is written."""


class Annotate(msgspec.Struct, frozen=True, tag=True):
    """Annotate the pod, so that everybody sees what the node does with it."""

    annotations: Mapping[str, str]


Step = CreateSandbox | Start | Stop | RemoveSandbox | DeletePod | Annotate


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """`steps` in their order; `status` is None where the one that was written is final."""

    steps: tuple[Step, ...] = ()
    status: dict[str, Any] | None = None
    requeue_after: float | None = None

    @property
    def is_moving(self) -> bool:
        """Whether the status will change again at once, so that writing it now would be waste."""
        return any(isinstance(step, (CreateSandbox, Start)) for step in self.steps)

    @property
    def is_final(self) -> bool:
        """Whether the status is the last word, and nobody could write it later."""
        return any(isinstance(step, (RemoveSandbox, DeletePod)) for step in self.steps)


class PodTermination(msgspec.Struct, frozen=True):
    """The pod has to end: how long its runs have for that, and what is said of it."""

    grace: float
    why: str
    reason: str | None = None
    message: str | None = None
    phase: str = ""


def plan(snapshot: Snapshot) -> Plan:
    known = histories(snapshot)
    if snapshot.pod.is_finished:
        return _after_the_end(snapshot)
    pod_termination = _ending(snapshot, known)
    if pod_termination is not None:
        return _end(snapshot, known, pod_termination)
    steps, moments = _run_pod(snapshot, known)
    limit = snapshot.pod.spec.active_deadline_seconds
    if limit is not None:
        moments.append(snapshot.now + limit - snapshot.active_seconds)
    # A moment that is past and brought no step waits for an event, not for the clock.
    ahead = [moment - snapshot.now for moment in moments if moment > snapshot.now]
    status = pod_status.build(snapshot, known)
    return Plan(steps=(*_orphan_runs(snapshot, known), *steps), status=status, requeue_after=min(ahead, default=None))


def _after_the_end(snapshot: Snapshot) -> Plan:
    """The last word is written. What is left over goes, whoever wrote it."""
    if live := _live(snapshot):
        return Plan(steps=tuple(_stops(snapshot, live, _grace(snapshot.pod), "The pod is over.")))
    return Plan(steps=final_steps(snapshot))


def _ending(snapshot: Snapshot, histories: Mapping[str, RunHistory]) -> PodTermination | None:
    pod = snapshot.pod
    outcome = _outcome(pod, histories)
    if _is_late(snapshot, histories):
        message = "Pod was active on the node longer than the specified deadline"
        return PodTermination(_grace(pod), message, "DeadlineExceeded", message, "Failed")
    disrupted = _evicted(histories) or _unplaced(pod, histories)
    if disrupted is not None:
        return PodTermination(0.0, disrupted.message, disrupted.reason, disrupted.message, "Failed")
    if pod.metadata.is_deleting:
        phase = outcome or ("Succeeded" if _all_went_well(pod, histories) else "Failed")
        return PodTermination(_grace(pod), "The pod is deleted.", phase=phase)
    if outcome:
        return _decided(pod, histories, outcome)
    if snapshot.lost_runs and pod.spec.restart_policy == "Never":
        message = "The node lost the pod's place, with all that was done there, and nothing in this pod may run twice."
        return PodTermination(_grace(pod), message, LOST, message, "Failed")
    return None


def _evicted(histories: Mapping[str, RunHistory]) -> Ended | None:
    return next((past.ended for past in histories.values() if past.ended and past.ended.reason == EVICTED), None)


def _unplaced(pod: Pod, histories: Mapping[str, RunHistory]) -> Ended | None:
    """Return the end of a run that never started for lack of capacity, if a controller will replace the pod.

    The pod ends whatever its restart policy: a restart would go to the same provider.
    """
    if pod.metadata.controller is None:
        return None
    ends = (past.ended for past in histories.values())
    return next((end for end in ends if end and end.reason == NO_CAPACITY and end.started is None), None)


def _decided(pod: Pod, histories: Mapping[str, RunHistory], outcome: str) -> PodTermination:
    lost = _lost(histories) if outcome == "Failed" else None
    if lost is not None:
        return PodTermination(_grace(pod), lost.message, LOST, lost.message, outcome)
    return PodTermination(_grace(pod), "The pod's work is over.", phase=outcome)


def _lost(histories: Mapping[str, RunHistory]) -> Ended | None:
    """The end of a run that the node lost, where no other run ended badly: the programs did nothing wrong."""
    bad = [past.ended for past in histories.values() if past.ended is not None and past.ended.code]
    return bad[0] if bad and all(end.reason == LOST for end in bad) else None


def _end(snapshot: Snapshot, histories: Mapping[str, RunHistory], pod_termination: PodTermination) -> Plan:
    """Stop the runs, sidecars last and in reverse; then, with nothing left, say how it ended and let go."""
    if live := _live(snapshot):
        first = _first_to_end(snapshot.pod, live)
        status = pod_status.build(snapshot, histories)
        return Plan(steps=tuple(_stops(snapshot, first, pod_termination.grace, pod_termination.why)), status=status)
    final_status = pod_status.FinalStatus(pod_termination.phase, pod_termination.reason, pod_termination.message)
    return Plan(steps=final_steps(snapshot), status=pod_status.build(snapshot, histories, final_status))


def final_steps(snapshot: Snapshot) -> tuple[Step, ...]:
    steps: list[Step] = [RemoveSandbox()] if snapshot.address is not None else []
    metadata = snapshot.pod.metadata
    # With a grace of 0 the API server waits for finalizers only: there is nothing left to ask of it.
    if metadata.is_deleting and metadata.deletion_grace_period_seconds != 0:
        steps.append(DeletePod())
    return tuple(steps)


def _run_pod(snapshot: Snapshot, histories: Mapping[str, RunHistory]) -> tuple[list[Step], list[float]]:
    """The steps of a pod that shall run, and the moments at which time alone brings the next one."""
    if snapshot.unsupported.rejected:
        return [], []
    if snapshot.address is None:
        held = snapshot.waiting.get("")
        if held is not None and held.retry_at > snapshot.now:
            return [], [held.retry_at]
        return [CreateSandbox()], []
    steps: list[Step] = []
    moments: list[float] = []
    for container in _wanted(snapshot, histories):
        due = _due(snapshot, container, histories[container.name])
        if due is None:
            steps += _ended_for_health(snapshot, container, histories[container.name])
        elif due <= snapshot.now:
            steps.append(Start(container.name, histories[container.name].next))
        else:
            moments.append(due)
    return steps, moments


def _wanted(snapshot: Snapshot, histories: Mapping[str, RunHistory]) -> Iterator[Container]:
    """Containers that shall run now and do not have their end behind them."""
    pod = snapshot.pod
    for container in pod.spec.init_containers:
        past = histories[container.name]
        if is_sidecar(container):
            yield container
            if not is_started(snapshot, container, past):
                return
        elif not _is_initialised(snapshot, container, past):
            yield container
            return
    for container in pod.spec.containers:
        end = histories[container.name].ended
        if end is None or pod.spec.restart_policy == "Always" or (pod.spec.restart_policy == "OnFailure" and end.code):
            yield container


def _is_initialised(snapshot: Snapshot, container: Container, past: RunHistory) -> bool:
    if past.ended is None or past.ended.code:
        return False
    return snapshot.run(container.name, past.number) not in snapshot.lost_runs  # what it prepared went with its place


def is_started(snapshot: Snapshot, container: Container, past: RunHistory) -> bool:
    run = snapshot.run(container.name, past.number)
    return past.is_running and run not in snapshot.starting and snapshot.health.get(run, HEALTHY).started


def _due(snapshot: Snapshot, container: Container, past: RunHistory) -> float | None:
    """When to start the next run; None while one is there or under way."""
    is_there = past.is_live and past.next > past.number
    if is_there or snapshot.run(container.name, past.next) in snapshot.starting:
        return None
    held = snapshot.waiting.get(container.name)
    if held is not None:
        return held.retry_at
    return past.ended.ended + past.restart_delay if past.ended else snapshot.now


def _ended_for_health(snapshot: Snapshot, container: Container, past: RunHistory) -> Iterable[Stop]:
    run = snapshot.run(container.name, past.number)
    probe_state = snapshot.health.get(run, HEALTHY)
    if not past.is_running or not probe_state.failure:
        return ()
    grace = _grace(snapshot.pod) if probe_state.grace is None else float(probe_state.grace)
    return _stops(snapshot, [run], grace, probe_state.failure)


def _orphan_runs(snapshot: Snapshot, histories: Mapping[str, RunHistory]) -> Iterator[Stop]:
    """Runs that go on although a later one is there, or although they were told to have ended."""
    strange = [
        run
        for run in _unended(snapshot)
        if run.container not in histories or (run.number, True) != _latest(histories[run.container])
    ]
    return _stops(snapshot, strange, 0.0, "It is not the latest run of its container.")


def _latest(past: RunHistory) -> tuple[int, bool]:
    return past.number, past.is_live


def _stops(snapshot: Snapshot, runs: Iterable[RunId], grace: float, message: str) -> Iterator[Stop]:
    """Ask once, and once more only where there is less time than was given."""
    for run in runs:
        if run not in snapshot.stops or snapshot.now + grace < snapshot.stops[run]:
            yield Stop(run, grace, message)


def _unended(snapshot: Snapshot) -> list[RunId]:
    return sorted(run for run, state in snapshot.runs.items() if not isinstance(state, Ended))


def _live(snapshot: Snapshot) -> list[RunId]:
    return sorted({*_unended(snapshot), *snapshot.starting})


def _first_to_end(pod: Pod, live: list[RunId]) -> list[RunId]:
    sidecars = [container.name for container in pod.spec.init_containers if is_sidecar(container)]
    others = [run for run in live if run.container not in sidecars]
    if others:
        return others
    return sorted(live, key=lambda run: sidecars.index(run.container))[-1:]


def _outcome(pod: Pod, histories: Mapping[str, RunHistory]) -> str:
    """Succeeded or Failed where the containers have decided it; empty while they have not."""
    never = pod.spec.restart_policy == "Never"
    for container in pod.spec.init_containers:
        end = histories[container.name].ended
        if never and end is not None and end.code and not is_sidecar(container):
            return "Failed"
    ends = [histories[container.name].ended for container in pod.spec.containers]
    if pod.spec.restart_policy == "Always" or not all(ends):
        return ""
    if _all_went_well(pod, histories):
        return "Succeeded"
    return "Failed" if never else ""


def _all_went_well(pod: Pod, histories: Mapping[str, RunHistory]) -> bool:
    ends = [histories[container.name].ended for container in pod.spec.containers]
    return all(end is not None and end.code == 0 for end in ends)


def _grace(pod: Pod) -> float:
    seconds = pod.metadata.deletion_grace_period_seconds
    if pod.metadata.is_deleting and seconds is not None:
        return float(seconds)
    asked = pod.spec.termination_grace_period_seconds
    return _DEFAULT_GRACE if asked is None else float(asked)


def _is_late(snapshot: Snapshot, histories: Mapping[str, RunHistory]) -> bool:
    """Whether the deadline came before the end of the work. It stays so when the runs have been ended for it.

    A clock that is set ends nothing. An end may be told by another clock, such as a cloud's: what would run again after
    it is late whatever that one says.
    """
    pod, limit = snapshot.pod, snapshot.pod.spec.active_deadline_seconds
    if limit is None or snapshot.active_seconds < limit:
        return False
    if not pod.metadata.is_deleting and not _outcome(pod, histories):
        return True
    deadline = seconds(pod.status.start_time) + limit if pod.status.start_time else snapshot.now
    ends = [histories[container.name].ended for container in pod.spec.containers]
    return any(end is None or end.ended >= deadline for end in ends)
