"""What is read of a model's Job, Deployment and pods."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from skysail.base.names import Annotation, Label
from skysail.kinds.serving.children import labels
from skysail.kinds.serving.children.fetch_container import NAME as FETCH
from skysail.kube.api import resource_validation, workloads
from skysail.kube.api.objects import Object
from skysail.kube.api.workloads import Condition, Container, Read, holding, label

_DEADLINE = "ProgressDeadlineExceeded"
_MEMORY = "memory"
_STORAGE = "storage"
_OF_SEVERAL_NODES = frozenset({"ReadWriteMany", "ReadOnlyMany"})
# The volume has grown, and its file system does when it is mounted next.
_GROWS_WHEN_MOUNTED = "FileSystemResizePending"


class Job(workloads.Job, frozen=True, gc=False):
    """What makes a revision ready to be served."""

    @property
    def revision(self) -> str:
        return label(self, Label.REVISION)

    @property
    def circumstances(self) -> str:
        """What it was made under, beside the revision."""
        return (self.metadata.annotations or {}).get(Annotation.CIRCUMSTANCES, "")


class ClaimResources(Read, frozen=True):
    requests: dict[str, Any] = {}  # noqa: RUF012 (msgspec copies an empty one)


class ClaimSpec(Read, frozen=True):
    access_modes: tuple[str, ...] = ()
    resources: ClaimResources = ClaimResources()


class ClaimStatus(Read, frozen=True):
    phase: str = "Pending"
    capacity: dict[str, Any] = {}  # noqa: RUF012 (msgspec copies an empty one)
    conditions: tuple[Condition, ...] = ()


class Claim(Object, frozen=True, gc=False):
    """The volume that keeps what was downloaded, or one that it is copied from."""

    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()

    @property
    def is_bound(self) -> bool:
        return self.status.phase == "Bound"

    @property
    def is_shared(self) -> bool:
        """Whether pods of several nodes can have it at once."""
        return not _OF_SEVERAL_NODES.isdisjoint(self.spec.access_modes)

    @property
    def size(self) -> str:
        """What was asked for last."""
        return str(self.spec.resources.requests.get(_STORAGE, ""))

    def is_below(self, size: str) -> bool:
        """Whether less than that was asked for."""
        wanted, asked = resource_validation.number(size), resource_validation.number(self.size)
        return wanted is not None and asked is not None and asked < wanted

    def has(self, size: str) -> bool:
        """Whether so much is there for the next pod."""
        wanted, there = resource_validation.number(size), resource_validation.number(self.status.capacity.get(_STORAGE))
        is_there = wanted is not None and there is not None and there >= wanted
        return is_there or holding(self.status.conditions, _GROWS_WHEN_MOUNTED) is not None


class Resources(Read, frozen=True):
    limits: dict[str, Any] = {}  # noqa: RUF012 (msgspec copies an empty one)


class ContainerSpec(Read, frozen=True):
    name: str = ""
    resources: Resources = Resources()


class PodSpec(workloads.PodSpec, frozen=True):
    init_containers: tuple[ContainerSpec, ...] = ()
    containers: tuple[ContainerSpec, ...] = ()


class Pod(workloads.Pod, frozen=True, gc=False):
    """One that makes a revision ready, or one that serves it."""

    spec: PodSpec = PodSpec()

    @property
    def revision(self) -> str:
        return label(self, Label.REVISION)

    @property
    def prepares(self) -> bool:
        """By its label: one that has outlived its Job still does."""
        return label(self, Label.TYPE) == labels.VALIDATION_TYPE

    @property
    def serves(self) -> bool:
        """Whether it is there to answer, whether or not it does."""
        return not self.prepares and not self.metadata.is_deleting and not self.is_over

    @property
    def is_ready(self) -> bool:
        return holding(self.status.conditions, "Ready") is not None

    def container(self, name: str) -> Container | None:
        return next((row for row in self.containers if row.name == name), None)

    def has_container(self, name: str) -> bool:
        return any(row.name == name for row in (*self.spec.init_containers, *self.spec.containers))

    @property
    def is_downloading(self) -> bool:
        fetch = self.container(FETCH)
        return fetch is not None and fetch.state.running is not None and not self.metadata.is_deleting

    def memory_limit(self, container: str) -> str:
        """Empty where there is none."""
        rows = (*self.spec.init_containers, *self.spec.containers)
        return next((str(row.resources.limits.get(_MEMORY, "")) for row in rows if row.name == container), "")


class TemplateMeta(Read, frozen=True):
    labels: dict[str, str] = {}  # noqa: RUF012 (msgspec copies an empty one)


class Template(Read, frozen=True):
    metadata: TemplateMeta = TemplateMeta()


class DeploymentSpec(Read, frozen=True):
    replicas: int = 1
    template: Template = Template()


class DeploymentStatus(Read, frozen=True):
    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    conditions: tuple[Condition, ...] = ()


class Deployment(Object, frozen=True, gc=False):
    """The servers. Those of one revision replace those of another, one by one."""

    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()

    @property
    def revision(self) -> str:
        """The one that its template makes."""
        return self.spec.template.metadata.labels.get(Label.REVISION, "")

    @property
    def is_current(self) -> bool:
        """Whether its status speaks of its present template and number."""
        return self.status.observed_generation >= self.metadata.generation

    @property
    def is_rolled_out(self) -> bool:
        """Whether all servers that are wanted answer, and no other is left."""
        status = self.status
        counts = {status.replicas, status.updated_replicas, status.available_replicas}
        return self.is_current and counts == {self.spec.replicas}

    @property
    def overdue(self) -> str:
        """Which servers did not come up in the time that they had: these, or others before them. Empty for none."""
        row = next((row for row in self.status.conditions if row.type == "Progressing"), None)
        if row is None or not self.is_current or (row.status, row.reason) != ("False", _DEADLINE):
            return ""
        return row.message

    @property
    def refusal(self) -> str | None:
        """Why pods of it cannot be made, in the words of who should make them."""
        found = holding(self.status.conditions, "ReplicaFailure")
        return found.message if found is not None else None


def newest(pods: Iterable[Pod]) -> Pod | None:
    """Times are in seconds: who has ended came earlier."""
    in_order = sorted(pods, key=lambda pod: (pod.metadata.creation_timestamp or "", not pod.is_over, pod.metadata.name))
    return in_order[-1] if in_order else None
