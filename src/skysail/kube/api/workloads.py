"""Jobs and pods, as far as engines read them. An engine adds what its labels mean."""

from __future__ import annotations

import msgspec

from skysail.kube.api.objects import Object

DISRUPTED = "DisruptionTarget"
# The Job controller announces an end by the first of each pair, and confirms it when all pods have ended.
_COMPLETE = ("SuccessCriteriaMet", "Complete")
_FAILED = ("FailureTarget", "Failed")
# Reasons of containers that ended with the agent of their node: of Skysail's own nodes, and of kubelets.
_LOST = frozenset({"Lost", "ContainerStatusUnknown"})
_SCHEDULED = "PodScheduled"


class Read(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A part that is only read."""


class Condition(Read, frozen=True):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class JobStatus(Read, frozen=True):
    conditions: tuple[Condition, ...] = ()


class Job(Object, frozen=True, gc=False):
    status: JobStatus = JobStatus()

    @property
    def is_complete(self) -> bool:
        return self.success is not None

    @property
    def success(self) -> Condition | None:
        return holding(self.status.conditions, *_COMPLETE)

    @property
    def failed(self) -> Condition | None:
        return holding(self.status.conditions, *_FAILED)

    @property
    def is_over(self) -> bool:
        """Whether it is certain that none of its pods runs any more."""
        return holding(self.status.conditions, _COMPLETE[-1], _FAILED[-1]) is not None


class Waiting(Read, frozen=True):
    reason: str = ""
    message: str = ""


class Running(Read, frozen=True):
    started_at: str | None = None


class Terminated(Read, frozen=True):
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None

    @property
    def is_lost(self) -> bool:
        """Whether the node lost the container, as with its agent: the exit code says nothing about the program."""
        return self.reason in _LOST


class State(Read, frozen=True):
    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class Container(Read, frozen=True):
    """`last_state` is how it ended before it was started again."""

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


class PodSpec(Read, frozen=True):
    node_name: str = ""


class PodStatus(Read, frozen=True):
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
    def runs(self) -> bool:
        return self.status.phase == "Running" and not self.metadata.is_deleting

    @property
    def is_over(self) -> bool:
        return self.status.phase in {"Succeeded", "Failed"}

    @property
    def disruption(self) -> Condition | None:
        """Why it has to end although it did nothing wrong."""
        return holding(self.status.conditions, DISRUPTED)

    @property
    def unscheduled(self) -> Condition | None:
        found = next((row for row in self.status.conditions if row.type == _SCHEDULED), None)
        return found if found is not None and found.status == "False" else None

    @property
    def containers(self) -> tuple[Container, ...]:
        return (*self.status.init_container_statuses, *self.status.container_statuses)

    @property
    def exit(self) -> tuple[str, Terminated] | None:
        """The container that ended it badly, by name, and how: the first one that did."""
        bad = [(row.name, end) for row in self.containers if (end := row.state.terminated) and end.exit_code != 0]
        return min(bad, key=lambda row: row[1].finished_at or "", default=None)

    @property
    def started_at(self) -> str | None:
        """When its last container started; None while one has not."""
        starts = [container.started_at for container in self.status.container_statuses]
        known = [start for start in starts if start is not None]
        return max(known) if known and len(known) == len(starts) else None

    @property
    def restarts(self) -> int:
        return sum(container.restart_count for container in self.status.container_statuses)


def holding(conditions: tuple[Condition, ...], *types: str) -> Condition | None:
    """The first of these that holds; the later type says more than the earlier one."""
    found = {row.type: row for row in conditions if row.status == "True"}
    return next((found[type_] for type_ in reversed(types) if type_ in found), None)


def label(object_: Object, name: str) -> str:
    return (object_.metadata.labels or {}).get(name, "")
