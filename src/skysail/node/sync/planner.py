"""Planner of the kubelet: computes the next steps, the status, and the requeue delay from a snapshot of one pod. Pure.

Init containers run in order, sidecars keep running, and the other containers run in parallel. Ended containers restart
by the pod's restart policy. A pod that is deleted, past its deadline or complete is stopped. Its status becomes final
only when all of its runs have ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from skysail.base.names import Annotation, Label
from skysail.cloud.provider import EVICTED, LOST, NO_CAPACITY, Ended, RunId, Running
from skysail.node.pod_types import Container, Pod
from skysail.node.sync import status as pod_status
from skysail.node.sync.snapshot import HEALTHY, RunHistory, Snapshot, histories, is_hopeless, is_sidecar, seconds

_DEFAULT_GRACE = 30.0
_UNPLACED_SECONDS = 30 * 60.0
_RUNPOD = "runpod"
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


class CreateSandbox(msgspec.Struct, frozen=True, tag=True):
    """Create the pod sandbox."""


class Start(msgspec.Struct, frozen=True, tag=True):
    container: str
    number: int


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Ask a run to end within `grace` seconds. `why` is for the user."""

    run: RunId
    grace: float
    why: str


class RemoveSandbox(msgspec.Struct, frozen=True, tag=True):
    """Remove the pod sandbox. All of its runs have ended."""


class DeletePod(msgspec.Struct, frozen=True, tag=True):
    """Delete the pod at the API server, without grace and by its UID, after the last status is written."""


class Annotate(msgspec.Struct, frozen=True, tag=True):
    """Annotate the pod, so that users see how the node treats it."""

    annotations: Mapping[str, str]


class ShowInstance(msgspec.Struct, frozen=True, tag=True):
    """Write the id of the pod's instance at its cloud into annotations and labels of the pod."""

    annotations: Mapping[str, str]
    labels: Mapping[str, str]


Step = CreateSandbox | Start | Stop | RemoveSandbox | DeletePod | Annotate | ShowInstance


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the planner: ordered steps, and the status. `status` is None if the written status is final."""

    steps: tuple[Step, ...] = ()
    status: dict[str, Any] | None = None
    requeue_after: float | None = None

    @property
    def is_moving(self) -> bool:
        """Return whether the status will change again at once, so that a write now would be wasted."""
        return any(isinstance(step, (CreateSandbox, Start)) for step in self.steps)

    @property
    def is_final(self) -> bool:
        """Return whether this is the last chance to write the status."""
        return any(isinstance(step, (RemoveSandbox, DeletePod)) for step in self.steps)


class PodTermination(msgspec.Struct, frozen=True):
    """The pod must end: grace period of its runs, and the final status."""

    grace: float
    why: str
    reason: str | None = None
    message: str | None = None
    phase: str = ""


def plan(snapshot: Snapshot) -> Plan:
    by_container = histories(snapshot)
    if snapshot.pod.is_finished:
        return _plan_finished(snapshot)
    pod_termination = _termination(snapshot, by_container)
    if pod_termination is not None:
        return _end(snapshot, by_container, pod_termination)
    steps, moments = _run_pod(snapshot, by_container)
    limit = snapshot.pod.spec.active_deadline_seconds
    if limit is not None:
        moments.append(snapshot.now + limit - snapshot.active_seconds)
    # A past moment that brought no step waits for an event, not for the clock.
    delays = [moment - snapshot.now for moment in moments if moment > snapshot.now]
    status = pod_status.build(snapshot, by_container)
    steps = [*_obsolete_runs(snapshot, by_container), *steps, *_instance(snapshot)]
    return Plan(steps=tuple(steps), status=status, requeue_after=min(delays, default=None))


def _plan_finished(snapshot: Snapshot) -> Plan:
    """Stop and remove the rest of a pod whose final status is written, even if another writer wrote it."""
    if live := _live(snapshot):
        return Plan(steps=tuple(_stops(snapshot, live, _grace(snapshot.pod), "The pod is finished.")))
    steps, left = final_steps(snapshot), _unplaced_seconds(snapshot)
    if left is None or DeletePod() in steps:
        return Plan(steps=steps)
    return Plan(steps=(*steps, DeletePod())) if left <= 0 else Plan(steps=steps, requeue_after=left)


def _unplaced_seconds(snapshot: Snapshot) -> float | None:
    """Return the seconds until a replaced pod that no cloud had capacity for is deleted, or None for other pods.

    Such a pod never ran, so nothing of it is worth keeping, and a cloud without capacity would pile up thousands.
    """
    pod = snapshot.pod
    if pod.status.reason != NO_CAPACITY or pod.status.phase != "Failed" or pod.metadata.controller is None:
        return None
    times = [seconds(row["lastTransitionTime"]) for row in pod.status.conditions if row.get("lastTransitionTime")]
    return max(times, default=snapshot.now) + _UNPLACED_SECONDS - snapshot.now


def _termination(snapshot: Snapshot, histories: Mapping[str, RunHistory]) -> PodTermination | None:
    pod = snapshot.pod
    outcome = _outcome(pod, histories)
    if _is_late(snapshot, histories):
        message = "Pod was active on the node longer than the specified deadline"
        return PodTermination(_grace(pod), message, "DeadlineExceeded", message, "Failed")
    disrupted = _evicted(histories) or _unplaced(pod, histories)
    if disrupted is not None:
        return PodTermination(0.0, disrupted.message, disrupted.reason, disrupted.message, "Failed")
    if pod.metadata.is_deleting:
        phase = outcome or ("Succeeded" if _all_succeeded(pod, histories) else "Failed")
        return PodTermination(_grace(pod), "The pod is being deleted.", phase=phase)
    if outcome:
        return _completion(pod, histories, outcome)
    if snapshot.lost_runs and pod.spec.restart_policy == "Never":
        message = "The node lost the pod's sandbox and its files, and restartPolicy Never forbids another run."
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


def _completion(pod: Pod, histories: Mapping[str, RunHistory], outcome: str) -> PodTermination:
    lost = _lost(histories) if outcome == "Failed" else None
    if lost is not None:
        return PodTermination(_grace(pod), lost.message, LOST, lost.message, outcome)
    return PodTermination(_grace(pod), "The pod is complete.", phase=outcome)


def _lost(histories: Mapping[str, RunHistory]) -> Ended | None:
    """Return the end of a run that the node lost. Returns None if another run failed by itself."""
    failed = [past.ended for past in histories.values() if past.ended is not None and past.ended.code]
    return failed[0] if failed and all(end.reason == LOST for end in failed) else None


def _end(snapshot: Snapshot, histories: Mapping[str, RunHistory], pod_termination: PodTermination) -> Plan:
    """Stop the runs, sidecars last and in reverse order. When all have ended, set the final status and clean up."""
    if live := _live(snapshot):
        first = _first_to_end(snapshot.pod, live)
        status = pod_status.build(snapshot, histories)
        stops = _stops(snapshot, first, pod_termination.grace, pod_termination.why)
        return Plan(steps=(*stops, *_instance(snapshot)), status=status)
    final_status = pod_status.FinalStatus(pod_termination.phase, pod_termination.reason, pod_termination.message)
    steps = (*_instance(snapshot), *final_steps(snapshot))
    return Plan(steps=steps, status=pod_status.build(snapshot, histories, final_status))


def _instance(snapshot: Snapshot) -> tuple[Step, ...]:
    """Return the step that shows the latest instance of a pod at RunPod, if the pod does not show it yet."""
    runs = [(run.number, state) for run, state in snapshot.runs.items() if isinstance(state, Running | Ended)]
    latest = max(runs, key=lambda row: row[0], default=None)
    cloud, _, id_ = latest[1].image_id.partition("/") if latest else ("", "", "")
    annotated = (snapshot.pod.metadata.annotations or {}).get(Annotation.RUNPOD_POD_ID)
    if cloud != _RUNPOD or annotated == id_ or not _LABEL_VALUE.fullmatch(id_):
        return ()
    return (ShowInstance({Annotation.RUNPOD_POD_ID.value: id_}, {Label.RUNPOD_POD_ID.value: id_}),)


def final_steps(snapshot: Snapshot) -> tuple[Step, ...]:
    steps: list[Step] = [RemoveSandbox()] if snapshot.address is not None else []
    metadata = snapshot.pod.metadata
    # With a grace period of 0 the API server waits for finalizers only, so a second delete has no effect.
    if metadata.is_deleting and metadata.deletion_grace_period_seconds != 0:
        steps.append(DeletePod())
    return tuple(steps)


def _run_pod(snapshot: Snapshot, histories: Mapping[str, RunHistory]) -> tuple[list[Step], list[float]]:
    """Return the steps of a pod that should run, and the moments at which the clock alone causes the next step."""
    if snapshot.unsupported.rejected:
        return [], []
    if snapshot.address is None:
        backoff = snapshot.waiting.get("")
        if backoff is not None and backoff.retry_at > snapshot.now:
            return [], [backoff.retry_at]
        return [CreateSandbox()], []
    steps: list[Step] = []
    moments: list[float] = []
    for container in _desired_containers(snapshot, histories):
        due = _due(snapshot, container, histories[container.name])
        if due is None:
            steps += _stop_unhealthy(snapshot, container, histories[container.name])
        elif due <= snapshot.now:
            steps.append(Start(container.name, histories[container.name].next))
        else:
            moments.append(due)
    return steps, moments


def _desired_containers(snapshot: Snapshot, histories: Mapping[str, RunHistory]) -> Iterator[Container]:
    """Yield containers that should run now and are not complete."""
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
        if end is None or (pod_status.restarts(pod, container, end) and not is_hopeless(end)):
            yield container


def _is_initialised(snapshot: Snapshot, container: Container, past: RunHistory) -> bool:
    if past.ended is None or past.ended.code:
        return False
    # An init container of a lost sandbox must run again, because its files are lost.
    return snapshot.run(container.name, past.number) not in snapshot.lost_runs


def is_started(snapshot: Snapshot, container: Container, past: RunHistory) -> bool:
    run = snapshot.run(container.name, past.number)
    return past.is_running and run not in snapshot.starting and snapshot.health.get(run, HEALTHY).started


def _due(snapshot: Snapshot, container: Container, past: RunHistory) -> float | None:
    """Return when to start the next run. Returns None if a run is live or starting."""
    is_live = past.is_live and past.next > past.number
    if is_live or snapshot.run(container.name, past.next) in snapshot.starting:
        return None
    backoff = snapshot.waiting.get(container.name)
    if backoff is not None:
        return backoff.retry_at
    return past.ended.ended + past.restart_delay if past.ended else snapshot.now


def _stop_unhealthy(snapshot: Snapshot, container: Container, past: RunHistory) -> Iterable[Stop]:
    run = snapshot.run(container.name, past.number)
    probe_state = snapshot.health.get(run, HEALTHY)
    if not past.is_running or not probe_state.failure:
        return ()
    grace = _grace(snapshot.pod) if probe_state.grace is None else float(probe_state.grace)
    return _stops(snapshot, [run], grace, probe_state.failure)


def _obsolete_runs(snapshot: Snapshot, histories: Mapping[str, RunHistory]) -> Iterator[Stop]:
    """Stop live runs that a later run has replaced, or that have ended according to the written status."""
    obsolete = [
        run
        for run in _unended(snapshot)
        if run.container not in histories or (run.number, True) != _latest(histories[run.container])
    ]
    return _stops(snapshot, obsolete, 0.0, "It is not the latest run of its container.")


def _latest(past: RunHistory) -> tuple[int, bool]:
    return past.number, past.is_live


def _stops(snapshot: Snapshot, runs: Iterable[RunId], grace: float, message: str) -> Iterator[Stop]:
    """Stop each run once, and again only if the grace period has become shorter."""
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
    """Return Succeeded or Failed if the containers have decided the pod's phase, else an empty string."""
    never = pod.spec.restart_policy == "Never"
    for container in pod.spec.init_containers:
        end = histories[container.name].ended
        if never and end is not None and end.code and not is_sidecar(container):
            return "Failed"
    ends = [histories[container.name].ended for container in pod.spec.containers]
    if pod.spec.restart_policy == "Always" or not all(ends):
        return ""
    if _all_succeeded(pod, histories):
        return "Succeeded"
    return "Failed" if never else ""


def _all_succeeded(pod: Pod, histories: Mapping[str, RunHistory]) -> bool:
    ends = [histories[container.name].ended for container in pod.spec.containers]
    return all(end is not None and end.code == 0 for end in ends)


def _grace(pod: Pod) -> float:
    seconds = pod.metadata.deletion_grace_period_seconds
    if pod.metadata.is_deleting and seconds is not None:
        return float(seconds)
    grace = pod.spec.termination_grace_period_seconds
    return _DEFAULT_GRACE if grace is None else float(grace)


def _is_late(snapshot: Snapshot, histories: Mapping[str, RunHistory]) -> bool:
    """Return whether the pod passed its deadline before it was complete. Stays true after the runs were stopped for it.

    A change of the wall clock does not end a pod. The end of a run may have a time of another clock, such as a cloud's:
    a pod that would run again is late, whatever that time is.
    """
    pod, limit = snapshot.pod, snapshot.pod.spec.active_deadline_seconds
    if limit is None or snapshot.active_seconds < limit:
        return False
    if not pod.metadata.is_deleting and not _outcome(pod, histories):
        return True
    began = seconds(pod.status.start_time) if pod.status.start_time else snapshot.now - snapshot.active_seconds
    deadline = began + limit
    ends = [histories[container.name].ended for container in pod.spec.containers]
    return any(end is None or end.ended >= deadline for end in ends)
