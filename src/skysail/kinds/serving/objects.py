"""Parts of Jobs, Deployments, PVCs and pods that the planner reads."""

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
# The volume has grown; its file system grows at the next mount.
_GROWS_WHEN_MOUNTED = "FileSystemResizePending"


class Job(workloads.Job, frozen=True, gc=False):
    """Job that prepares a revision."""

    @property
    def revision(self) -> str:
        return label(self, Label.REVISION)

    @property
    def circumstances(self) -> str:
        """Hash of the settings and PVC size that the Job was created with."""
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
    """PVC that holds the downloaded model, or the PVC that a model is copied from."""

    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()

    @property
    def is_bound(self) -> bool:
        return self.status.phase == "Bound"

    @property
    def is_shared(self) -> bool:
        """Return whether pods on several nodes can mount the PVC."""
        return not _OF_SEVERAL_NODES.isdisjoint(self.spec.access_modes)

    @property
    def size(self) -> str:
        """Return the requested size."""
        return str(self.spec.resources.requests.get(_STORAGE, ""))

    def is_below(self, size: str) -> bool:
        """Return whether the requested size is smaller."""
        wanted, asked = resource_validation.number(size), resource_validation.number(self.size)
        return wanted is not None and asked is not None and asked < wanted

    def has(self, size: str) -> bool:
        """Return whether the next pod finds at least this size."""
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
    """Pod that prepares or serves a revision."""

    spec: PodSpec = PodSpec()

    @property
    def revision(self) -> str:
        return label(self, Label.REVISION)

    @property
    def prepares(self) -> bool:
        """Return whether the pod prepares a revision, by its label: the Job may be deleted already."""
        return label(self, Label.TYPE) == labels.VALIDATION_TYPE

    @property
    def serves(self) -> bool:
        """Return whether the pod serves, ready or not."""
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
        """Return the memory limit; empty if there is none."""
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
    """Deployment of the servers. It replaces servers of the old revision one by one."""

    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()

    @property
    def revision(self) -> str:
        """Return the revision of the pod template."""
        return self.spec.template.metadata.labels.get(Label.REVISION, "")

    @property
    def is_current(self) -> bool:
        """Return whether the status reflects the current spec."""
        return self.status.observed_generation >= self.metadata.generation

    @property
    def is_rolled_out(self) -> bool:
        """Return whether all desired servers are available and no old one is left."""
        status = self.status
        counts = {status.replicas, status.updated_replicas, status.available_replicas}
        return self.is_current and counts == {self.spec.replicas}

    @property
    def overdue(self) -> str:
        """Return the message of an exceeded progress deadline, which names the ReplicaSet; empty otherwise."""
        row = next((row for row in self.status.conditions if row.type == "Progressing"), None)
        if row is None or not self.is_current or (row.status, row.reason) != ("False", _DEADLINE):
            return ""
        return row.message

    @property
    def refusal(self) -> str | None:
        """Return why pods cannot be created, as the ReplicaSet controller reports it, or None."""
        found = holding(self.status.conditions, "ReplicaFailure")
        return found.message if found is not None else None


def newest(pods: Iterable[Pod]) -> Pod | None:
    """Return the newest pod, or None. Timestamps have seconds, so a finished pod counts as older."""
    in_order = sorted(pods, key=lambda pod: (pod.metadata.creation_timestamp or "", not pod.is_over, pod.metadata.name))
    return in_order[-1] if in_order else None
