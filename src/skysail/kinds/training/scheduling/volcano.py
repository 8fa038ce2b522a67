"""Volcano: pods name their PodGroup, and Volcano's scheduler binds all of them or none. Pure."""

from __future__ import annotations

from decimal import Decimal
from typing import cast

from skysail.core.actions import Manifest
from skysail.kinds.training.api.training_job import TrainingJob
from skysail.kinds.training.children.replica_groups import GPU, Group, fewest, groups
from skysail.kinds.training.scheduling.gang_scheduler import Facts, Gang, Placement
from skysail.kube.api import quantities
from skysail.kube.api.objects import Object
from skysail.kube.api.rbac import Right, reading
from skysail.kube.api.resources import Resource
from skysail.kube.api.workloads import Condition, Read

POD_GROUP = Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup")

_DEFAULT_QUEUE = "default"
_SCHEDULER = "volcano"
_GROUP_NAME = "scheduling.k8s.io/group-name"
_WAITING = "Pending"


class _Spec(Read, frozen=True):
    queue: str = ""


class _Status(Read, frozen=True):
    phase: str = ""
    conditions: tuple[Condition, ...] = ()


class PodGroup(Object, frozen=True, gc=False):
    spec: _Spec = _Spec()
    status: _Status = _Status()


class Volcano(Gang):
    name = "Volcano"
    resource = POD_GROUP
    type = PodGroup
    rights = (reading(POD_GROUP), Right(POD_GROUP, ("create", "delete", "patch")))

    def spec(self, job: TrainingJob, facts: Facts) -> Manifest:  # noqa: ARG002 (interface)
        """Return the spec of the PodGroup. An elastic job starts with its minimum number of workers."""
        wanted = job.spec.scheduling
        members = [(group, fewest(job.spec, group)) for group in groups(job.spec)]
        spec: Manifest = {
            "minMember": sum(number for _, number in members),
            "queue": (wanted and wanted.queue) or _DEFAULT_QUEUE,
        }
        if wanted and wanted.priority_class:
            spec["priorityClassName"] = wanted.priority_class
        resources = _together(members)
        return {**spec, "minResources": resources} if resources else spec

    def placement(self, object_: Object, facts: Facts, role: str) -> Placement:  # noqa: ARG002 (interface)
        return Placement(annotations={_GROUP_NAME: object_.metadata.name}, scheduler=_SCHEDULER)

    def complaint(self, object_: Object) -> str | None:
        group = cast("PodGroup", object_)
        said = next((row for row in group.status.conditions if row.type == "Unschedulable"), None)
        if said is not None and said.status == "True":
            return f"Volcano has not placed the pods ({said.reason}): {' '.join(said.message.split())}"
        if group.status.phase in {"", _WAITING}:
            return f"The pods wait in Volcano's queue {group.spec.queue}."
        return None


def _together(members: list[tuple[Group, int]]) -> dict[str, str]:
    """Return the sum of the resources of the pods that the job starts with."""
    total: dict[str, Decimal] = {}
    for group, number in members:
        asked = {**group.resources.limits, **group.resources.requests}
        if group.gpus:
            asked[GPU] = group.gpus
        for name, amount in asked.items():
            total[name] = total.get(name, Decimal()) + quantities.parse(amount) * number
    return {name: _spelled(amount) for name, amount in sorted(total.items())}


def _spelled(amount: Decimal) -> str:
    """Return the quantity without an exponent: whole, or in thousandths."""
    return str(int(amount)) if amount == amount.to_integral_value() else f"{int(amount * 1000)}m"
