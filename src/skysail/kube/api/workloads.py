"""Jobs and pods, reduced to the fields that engines read. Each engine adds the meaning of its labels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from skysail.kube.api.objects import Object

DISRUPTED = "DisruptionTarget"
# The Job controller sets the first of each pair when the outcome is decided, the second when all pods have finished.
_COMPLETE = ("SuccessCriteriaMet", "Complete")
_FAILED = ("FailureTarget", "Failed")
# Reasons of containers that ended with the agent of their node: of Skysail's own nodes, and of kubelets.
_LOST = frozenset({"Lost", "ContainerStatusUnknown"})
_SCHEDULED = "PodScheduled"


P = TypeVar("P", bound="Pod")


class PartialStruct(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Base of read-only parts of an object."""


class Condition(PartialStruct, frozen=True):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class JobStatus(PartialStruct, frozen=True):
    conditions: tuple[Condition, ...] = ()


class Job(Object, frozen=True, gc=False):
    status: JobStatus = JobStatus()

    @property
    def is_complete(self) -> bool:
        return self.success is not None

    @property
    def success(self) -> Condition | None:
        return first_true_condition(self.status.conditions, *_COMPLETE)

    @property
    def failed(self) -> Condition | None:
        return first_true_condition(self.status.conditions, *_FAILED)

    @property
    def is_over(self) -> bool:
        """Return whether the Job is finished, so that none of its pods runs any more."""
        return first_true_condition(self.status.conditions, _COMPLETE[-1], _FAILED[-1]) is not None


class Waiting(PartialStruct, frozen=True):
    reason: str = ""
    message: str = ""


class Running(PartialStruct, frozen=True):
    started_at: str | None = None


class Terminated(PartialStruct, frozen=True):
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None

    @property
    def is_lost(self) -> bool:
        """Whether the node lost the container, as with its agent: the exit code says nothing about the program."""
        return self.reason in _LOST


class State(PartialStruct, frozen=True):
    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class Container(PartialStruct, frozen=True):
    """Container status. `last_state` is the termination before the last restart."""

    name: str = ""
    state: State = State()
    last_state: State = State()
    ready: bool = False
    restart_count: int = 0

    @property
    def started_at(self) -> str | None:
        if self.state.running is not None:
            return self.state.running.started_at
        return self.state.terminated.started_at if self.state.terminated is not None else None


class PodSpec(PartialStruct, frozen=True):
    node_name: str = ""
    node_selector: dict[str, str] = {}


class PodStatus(PartialStruct, frozen=True):
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    init_container_statuses: tuple[Container, ...] = ()
    container_statuses: tuple[Container, ...] = ()


class Pod(Object, frozen=True, gc=False):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def is_running(self) -> bool:
        return self.status.phase == "Running" and not self.metadata.is_deleting

    @property
    def is_finished(self) -> bool:
        return self.status.phase in {"Succeeded", "Failed"}

    @property
    def disruption(self) -> Condition | None:
        """Return the condition of an eviction, preemption or drain, or None."""
        return first_true_condition(self.status.conditions, DISRUPTED)

    @property
    def unscheduled_condition(self) -> Condition | None:
        found = next((row for row in self.status.conditions if row.type == _SCHEDULED), None)
        return found if found is not None and found.status == "False" else None

    @property
    def containers(self) -> tuple[Container, ...]:
        return (*self.status.init_container_statuses, *self.status.container_statuses)

    @property
    def termination(self) -> tuple[str, Terminated] | None:
        """Return name and termination of the container that failed first, or None."""
        bad = [
            (container.name, end)
            for container in self.containers
            if (end := container.state.terminated) and end.exit_code != 0
        ]
        return min(bad, key=lambda container: container[1].finished_at or "", default=None)

    @property
    def started_at(self) -> str | None:
        """Return when the last container started. Returns None until all have started."""
        starts = [container.started_at for container in self.status.container_statuses]
        known = [start for start in starts if start is not None]
        return max(known) if known and len(known) == len(starts) else None

    @property
    def restarts(self) -> int:
        return sum(container.restart_count for container in self.status.container_statuses)


def first_true_condition(conditions: tuple[Condition, ...], *types: str) -> Condition | None:
    """Return the true condition whose type is last in `types`, or None. Later types are more specific."""
    found = {condition.type: condition for condition in conditions if condition.status == "True"}
    return next((found[type_] for type_ in reversed(types) if type_ in found), None)


def oldest_first(pods: Iterable[P]) -> list[P]:
    """Sort pods by age. Timestamps have a resolution of one second: in the same second, a finished pod is older."""
    return sorted(pods, key=lambda pod: (pod.metadata.creation_timestamp or "", not pod.is_finished, pod.metadata.name))


def label(object_: Object, name: str) -> str:
    return (object_.metadata.labels or {}).get(name, "")
