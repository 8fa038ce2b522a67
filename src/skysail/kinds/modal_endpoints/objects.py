"""Children of endpoints and functions, as far as the planner reads them."""

from __future__ import annotations

from typing import Any

import msgspec

from skysail.base.names import Annotation, Label
from skysail.base.names import Condition as ConditionType
from skysail.kinds import claim_periods
from skysail.kube.api import workloads
from skysail.kube.api.objects import Object
from skysail.kube.api.workloads import Condition, PartialStruct, label


class DeploymentSpec(PartialStruct, frozen=True):
    replicas: int = 1
    template: dict[str, Any] = {}  # noqa: RUF012 (msgspec copies an empty one)


class DeploymentStatus(PartialStruct, frozen=True):
    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    available_replicas: int = 0
    conditions: tuple[Condition, ...] = ()


class Deployment(Object, frozen=True, gc=False):
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()

    @property
    def revision(self) -> str:
        """Return the revision that the Deployment was last applied with."""
        return str((self._template_metadata.get("labels") or {}).get(Label.REVISION, ""))

    @property
    def app(self) -> str:
        """Return the App that the Deployment was last applied with, or an empty string."""
        return str((self._template_metadata.get("annotations") or {}).get(Annotation.MODAL_APP, ""))

    @property
    def period(self) -> int:
        return claim_periods.period(self._template_metadata.get("annotations"))

    @property
    def _template_metadata(self) -> dict[str, Any]:
        return self.spec.template.get("metadata") or {}

    def is_rolled_out(self, revision: str) -> bool:
        """Return whether all pods are of this revision and available, and no older pod is left."""
        status, desired = self.status, self.spec.replicas
        return (
            self.revision == revision
            and status.observed_generation == self.metadata.generation
            and (status.replicas, status.updated_replicas, status.available_replicas) == (desired, desired, desired)
        )

    @property
    def creation_error(self) -> str:
        """Return why pods cannot be created, or an empty string."""
        failed = workloads.first_true_condition(self.status.conditions, "ReplicaFailure")
        return failed.message if failed else ""


class Pod(workloads.Pod, frozen=True, gc=False):
    @property
    def revision(self) -> str:
        return label(self, Label.REVISION)

    @property
    def offload_refusal(self) -> Condition | None:
        """Return why the pod is not at the cloud, or None."""
        rows = (row for row in self.status.conditions if row.type == ConditionType.OFFLOAD)
        return next((row for row in rows if row.status == "False"), None)


class ConfigMap(Object, frozen=True, gc=False):
    """A ConfigMap with code. `binary_data` is not used."""

    data: dict[str, str] = msgspec.field(default_factory=dict)
