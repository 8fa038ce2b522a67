"""What a kubelet decides: from a snapshot of one pod to the next steps, the status to show, and when to look again.

Pure. Init containers come in order, sidecars stay, the others run side by side; who ended runs again as the pod's
restart policy says; a pod that is deleted, late or done is ended, and only the end of every run makes its status final.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from skysail.cloud.provider import EVICTED, LOST, Ended, RunId
from skysail.node.pod_types import Container, Pod
from skysail.node.sync import status as render
from skysail.node.sync.snapshot import HEALTHY, History, Snapshot, histories, is_sidecar, seconds

_DEFAULT_GRACE = 30.0


class Prepare(msgspec.Struct, frozen=True, tag=True):
    """Make the place."""


class Start(msgspec.Struct, frozen=True, tag=True):
    container: str
    number: int


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Ask a run to end within `grace` seconds. `why` is for the user."""

    run: RunId
    grace: float
    why: str


class Release(msgspec.Struct, frozen=True, tag=True):
    """Take the place away. No run is left in it."""


class DeletePod(msgspec.Struct, frozen=True, tag=True):
    """Let the API server forget this very pod: without grace, and by its UID. After the last status is written."""


class Mark(msgspec.Struct, frozen=True, tag=True):
    """Annotate the pod, so that everybody sees what the node does with it."""

    annotations: Mapping[str, str]


Step = Prepare | Start | Stop | Release | DeletePod | Mark


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """`steps` in their order; `status` is None where the one that was written is final."""

    steps: tuple[Step, ...] = ()
    status: dict[str, Any] | None = None
    look_again: float | None = None

    @property
    def is_moving(self) -> bool:
        """Whether the status will change again at once, so that writing it now would be waste."""
        return any(isinstance(step, (Prepare, Start)) for step in self.steps)

    @property
    def is_parting(self) -> bool:
        """Whether the status is the last word, and nobody could write it later."""
        return any(isinstance(step, (Release, DeletePod)) for step in self.steps)


class Ending(msgspec.Struct, frozen=True):
    """The pod has to end: how long its runs have for that, and what is said of it."""

    grace: float
    why: str
    reason: str | None = None
    message: str | None = None
    phase: str = ""


def plan(snapshot: Snapshot) -> Plan:
    known = histories(snapshot)
    if snapshot.pod.is_over:
        return _after_the_end(snapshot)
    ending = _ending(snapshot, known)
    if ending is not None:
        return _end(snapshot, known, ending)
    steps, moments = _go_on(snapshot, known)
    limit = snapshot.pod.spec.active_deadline_seconds
    if limit is not None:
        moments.append(snapshot.now + limit - snapshot.active)
    # A moment that is past and brought no step waits for an event, not for the clock.
    ahead = [moment - snapshot.now for moment in moments if moment > snapshot.now]
    status = render.status(snapshot, known)
    return Plan(steps=(*_stragglers(snapshot, known), *steps), status=status, look_again=min(ahead, default=None))


def _after_the_end(snapshot: Snapshot) -> Plan:
    """The last word is written. What is left over goes, whoever wrote it."""
    if live := _live(snapshot):
        return Plan(steps=tuple(_stops(snapshot, live, _grace(snapshot.pod), "The pod is over.")))
    return Plan(steps=farewell(snapshot))


def _ending(snapshot: Snapshot, known: Mapping[str, History]) -> Ending | None:
    pod = snapshot.pod
    outcome = _outcome(pod, known)
    if _is_late(snapshot, known):
        message = "Pod was active on the node longer than the specified deadline"
        return Ending(_grace(pod), message, "DeadlineExceeded", message, "Failed")
    evicted = next((past.ended for past in known.values() if past.ended and past.ended.reason == EVICTED), None)
    if evicted is not None:
        return Ending(0.0, evicted.message, EVICTED, evicted.message, "Failed")
    if pod.metadata.is_deleting:
        phase = outcome or ("Succeeded" if _all_went_well(pod, known) else "Failed")
        return Ending(_grace(pod), "The pod is deleted.", phase=phase)
    if outcome:
        return _decided(pod, known, outcome)
    if snapshot.bygone and pod.spec.restart_policy == "Never":
        message = "The node lost the pod's place, with all that was done there, and nothing in this pod may run twice."
        return Ending(_grace(pod), message, LOST, message, "Failed")
    return None


def _decided(pod: Pod, known: Mapping[str, History], outcome: str) -> Ending:
    lost = _lost(known) if outcome == "Failed" else None
    if lost is not None:
        return Ending(_grace(pod), lost.message, LOST, lost.message, outcome)
    return Ending(_grace(pod), "The pod's work is over.", phase=outcome)


def _lost(known: Mapping[str, History]) -> Ended | None:
    """The end of a run that the node lost, where no other run ended badly: the programs did nothing wrong."""
    bad = [past.ended for past in known.values() if past.ended is not None and past.ended.code]
    return bad[0] if bad and all(end.reason == LOST for end in bad) else None


def _end(snapshot: Snapshot, known: Mapping[str, History], ending: Ending) -> Plan:
    """Stop the runs, sidecars last and in reverse; then, with nothing left, say how it ended and let go."""
    if live := _live(snapshot):
        first = _first_to_end(snapshot.pod, live)
        status = render.status(snapshot, known)
        return Plan(steps=tuple(_stops(snapshot, first, ending.grace, ending.why)), status=status)
    final = render.Final(ending.phase, ending.reason, ending.message)
    return Plan(steps=farewell(snapshot), status=render.status(snapshot, known, final))


def farewell(snapshot: Snapshot) -> tuple[Step, ...]:
    steps: list[Step] = [Release()] if snapshot.address is not None else []
    metadata = snapshot.pod.metadata
    # With a grace of 0 the API server waits for finalizers only: there is nothing left to ask of it.
    if metadata.is_deleting and metadata.deletion_grace_period_seconds != 0:
        steps.append(DeletePod())
    return tuple(steps)


def _go_on(snapshot: Snapshot, known: Mapping[str, History]) -> tuple[list[Step], list[float]]:
    """The steps of a pod that shall run, and the moments at which time alone brings the next one."""
    if snapshot.burden.refused:
        return [], []
    if snapshot.address is None:
        held = snapshot.waiting.get("")
        if held is not None and held.retry_at > snapshot.now:
            return [], [held.retry_at]
        return [Prepare()], []
    steps: list[Step] = []
    moments: list[float] = []
    for container in _wanted(snapshot, known):
        due = _due(snapshot, container, known[container.name])
        if due is None:
            steps += _ended_for_health(snapshot, container, known[container.name])
        elif due <= snapshot.now:
            steps.append(Start(container.name, known[container.name].next))
        else:
            moments.append(due)
    return steps, moments


def _wanted(snapshot: Snapshot, known: Mapping[str, History]) -> Iterator[Container]:
    """Containers that shall run now and do not have their end behind them."""
    pod = snapshot.pod
    for container in pod.spec.init_containers:
        past = known[container.name]
        if is_sidecar(container):
            yield container
            if not is_started(snapshot, container, past):
                return
        elif not _is_initialised(snapshot, container, past):
            yield container
            return
    for container in pod.spec.containers:
        end = known[container.name].ended
        if end is None or pod.spec.restart_policy == "Always" or (pod.spec.restart_policy == "OnFailure" and end.code):
            yield container


def _is_initialised(snapshot: Snapshot, container: Container, past: History) -> bool:
    if past.ended is None or past.ended.code:
        return False
    return snapshot.run(container.name, past.number) not in snapshot.bygone  # what it prepared went with its place


def is_started(snapshot: Snapshot, container: Container, past: History) -> bool:
    run = snapshot.run(container.name, past.number)
    return past.is_running and run not in snapshot.starting and snapshot.health.get(run, HEALTHY).started


def _due(snapshot: Snapshot, container: Container, past: History) -> float | None:
    """When to start the next run; None while one is there or under way."""
    is_there = past.is_live and past.next > past.number
    if is_there or snapshot.run(container.name, past.next) in snapshot.starting:
        return None
    held = snapshot.waiting.get(container.name)
    if held is not None:
        return held.retry_at
    return past.ended.ended + past.pause if past.ended else snapshot.now


def _ended_for_health(snapshot: Snapshot, container: Container, past: History) -> Iterable[Stop]:
    run = snapshot.run(container.name, past.number)
    health = snapshot.health.get(run, HEALTHY)
    if not past.is_running or not health.failure:
        return ()
    grace = _grace(snapshot.pod) if health.grace is None else float(health.grace)
    return _stops(snapshot, [run], grace, health.failure)


def _stragglers(snapshot: Snapshot, known: Mapping[str, History]) -> Iterator[Stop]:
    """Runs that go on although a later one is there, or although they were told to have ended."""
    strange = [
        run
        for run in _unended(snapshot)
        if run.container not in known or (run.number, True) != _latest(known[run.container])
    ]
    return _stops(snapshot, strange, 0.0, "It is not the latest run of its container.")


def _latest(past: History) -> tuple[int, bool]:
    return past.number, past.is_live


def _stops(snapshot: Snapshot, runs: Iterable[RunId], grace: float, why: str) -> Iterator[Stop]:
    """Ask once, and once more only where there is less time than was given."""
    for run in runs:
        if run not in snapshot.stops or snapshot.now + grace < snapshot.stops[run]:
            yield Stop(run, grace, why)


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


def _outcome(pod: Pod, known: Mapping[str, History]) -> str:
    """Succeeded or Failed where the containers have decided it; empty while they have not."""
    never = pod.spec.restart_policy == "Never"
    for container in pod.spec.init_containers:
        end = known[container.name].ended
        if never and end is not None and end.code and not is_sidecar(container):
            return "Failed"
    ends = [known[container.name].ended for container in pod.spec.containers]
    if pod.spec.restart_policy == "Always" or not all(ends):
        return ""
    if _all_went_well(pod, known):
        return "Succeeded"
    return "Failed" if never else ""


def _all_went_well(pod: Pod, known: Mapping[str, History]) -> bool:
    ends = [known[container.name].ended for container in pod.spec.containers]
    return all(end is not None and end.code == 0 for end in ends)


def _grace(pod: Pod) -> float:
    told = pod.metadata.deletion_grace_period_seconds
    if pod.metadata.is_deleting and told is not None:
        return float(told)
    asked = pod.spec.termination_grace_period_seconds
    return _DEFAULT_GRACE if asked is None else float(asked)


def _is_late(snapshot: Snapshot, known: Mapping[str, History]) -> bool:
    """Whether the deadline came before the end of the work. It stays so when the runs have been ended for it.

    A clock that is set ends nothing. An end may be told by another clock, such as a cloud's: what would run again after
    it is late whatever that one says.
    """
    pod, limit = snapshot.pod, snapshot.pod.spec.active_deadline_seconds
    if limit is None or snapshot.active < limit:
        return False
    if not pod.metadata.is_deleting and not _outcome(pod, known):
        return True
    deadline = seconds(pod.status.start_time) + limit if pod.status.start_time else snapshot.now
    ends = [known[container.name].ended for container in pod.spec.containers]
    return any(end is None or end.ended >= deadline for end in ends)
