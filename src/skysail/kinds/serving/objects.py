"""Parts of Jobs, Deployments, PVCs and pods that the planner reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from skysail.base.names import Annotation, Label
from skysail.kinds import claim_periods
from skysail.kinds.serving.children import labels
from skysail.kinds.serving.children.fetch_container import NAME as FETCH
from skysail.kube.api import resource_validation, workloads
from skysail.kube.api.objects import Object
from skysail.kube.api.workloads import Condition, Container, PartialStruct, first_true_condition, label, oldest_first

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
        return (self.metadata.annotations or {}).get(Annotation.PREPARE_CONFIG_HASH, "")


class ClaimResources(PartialStruct, frozen=True):
    requests: dict[str, Any] = {}  # noqa: RUF012 (msgspec copies an empty one)


class ClaimSpec(PartialStruct, frozen=True):
    access_modes: tuple[str, ...] = ()
    resources: ClaimResources = ClaimResources()


class ClaimStatus(PartialStruct, frozen=True):
    phase: str = "Pending"
    capacity: dict[str, Any] = {}  # noqa: RUF012 (msgspec copies an empty one)
    conditions: tuple[Condition, ...] = ()


class PersistentVolumeClaim(Object, frozen=True, gc=False):
    """PVC that holds the downloaded model, or the PVC that a model is copied from."""

    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()

    @property
    def is_bound(self) -> bool:
        return self.status.phase == "Bound"

    @property
    def is_multi_node(self) -> bool:
        """Return whether pods on several nodes can mount the PVC."""
        return not _OF_SEVERAL_NODES.isdisjoint(self.spec.access_modes)

    @property
    def size(self) -> str:
        """Return the requested size."""
        return str(self.spec.resources.requests.get(_STORAGE, ""))

    def requests_less_than(self, size: str) -> bool:
        """Return whether the requested size is smaller."""
        requested, asked = resource_validation.parse_quantity(size), resource_validation.parse_quantity(self.size)
        return requested is not None and asked is not None and asked < requested

    def has_capacity(self, size: str) -> bool:
        """Return whether the next pod finds at least this size."""
        requested, there = (
            resource_validation.parse_quantity(size),
            resource_validation.parse_quantity(self.status.capacity.get(_STORAGE)),
        )
        is_there = requested is not None and there is not None and there >= requested
        return is_there or first_true_condition(self.status.conditions, _GROWS_WHEN_MOUNTED) is not None


class Resources(PartialStruct, frozen=True):
    limits: dict[str, Any] = {}  # noqa: RUF012 (msgspec copies an empty one)


class ContainerSpec(PartialStruct, frozen=True):
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
    def is_at_cloud(self) -> bool:
        """Return whether the pod is a server at a cloud, whose container downloads the model before it serves."""
        return bool(label(self, Label.AT_CLOUD))

    @property
    def serves(self) -> bool:
        """Return whether the pod serves, ready or not."""
        return not self.prepares and not self.metadata.is_deleting and not self.is_finished

    @property
    def is_ready(self) -> bool:
        return first_true_condition(self.status.conditions, "Ready") is not None

    def container(self, name: str) -> Container | None:
        return next((container for container in self.containers if container.name == name), None)

    def has_container(self, name: str) -> bool:
        return any(spec.name == name for spec in (*self.spec.init_containers, *self.spec.containers))

    @property
    def is_downloading(self) -> bool:
        fetch = self.container(FETCH)
        return fetch is not None and fetch.state.running is not None and not self.metadata.is_deleting

    def memory_limit(self, container: str) -> str:
        """Return the memory limit; empty if there is none."""
        rows = (*self.spec.init_containers, *self.spec.containers)
        return next((str(spec.resources.limits.get(_MEMORY, "")) for spec in rows if spec.name == container), "")


class TemplateMeta(PartialStruct, frozen=True):
    labels: dict[str, str] = {}  # noqa: RUF012 (msgspec copies an empty one)
    annotations: dict[str, str] | None = None


class TemplateSpec(PartialStruct, frozen=True):
    affinity: dict[str, Any] | None = None


class Template(PartialStruct, frozen=True):
    metadata: TemplateMeta = TemplateMeta()
    spec: TemplateSpec = TemplateSpec()


class DeploymentSpec(PartialStruct, frozen=True):
    replicas: int = 1
    template: Template = Template()


class DeploymentStatus(PartialStruct, frozen=True):
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
    def period(self) -> int:
        """Return the period of the pod template, 0 for servers in the cluster."""
        return claim_periods.period(self.spec.template.metadata.annotations)

    @property
    def ignores_cloud(self) -> bool:
        """Return whether servers at a cloud do not count when the servers look for the node of their PVC."""
        near = (self.spec.template.spec.affinity or {}).get("podAffinity") or {}
        terms = near.get("requiredDuringSchedulingIgnoredDuringExecution") or ()
        return any((term.get("labelSelector") or {}).get("matchExpressions") for term in terms)

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
    def deadline_message(self) -> str:
        """Return the message of an exceeded progress deadline, which names the ReplicaSet; empty otherwise."""
        condition = next((condition for condition in self.status.conditions if condition.type == "Progressing"), None)
        if condition is None or not self.is_current or (condition.status, condition.reason) != ("False", _DEADLINE):
            return ""
        return condition.message

    @property
    def replica_failure(self) -> str | None:
        """Return why pods cannot be created, as the ReplicaSet controller reports it, or None."""
        condition = first_true_condition(self.status.conditions, "ReplicaFailure")
        return condition.message if condition is not None else None


def newest(pods: Iterable[Pod]) -> Pod | None:
    """Return the newest pod, or None."""
    return next(reversed(oldest_first(pods)), None)
