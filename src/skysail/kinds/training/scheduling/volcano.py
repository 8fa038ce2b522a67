"""Volcano: pods name their PodGroup, and Volcano's scheduler binds all of them or none. Pure."""

from __future__ import annotations

from decimal import Decimal
from typing import cast

from skysail.core.actions import Manifest
from skysail.kinds.training.api.training_job import TrainingJob
from skysail.kinds.training.children.replica_groups import GPU, ReplicaGroup, min_pods, replica_groups
from skysail.kinds.training.scheduling.gang_scheduler import GangScheduler, PodPlacement, SchedulingFacts
from skysail.kube.api import quantities
from skysail.kube.api.objects import Object
from skysail.kube.api.rbac import PolicyRule, read_rule
from skysail.kube.api.resources import Resource
from skysail.kube.api.workloads import Condition, PartialStruct

POD_GROUP = Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup")

_DEFAULT_QUEUE = "default"
_SCHEDULER = "volcano"
_GROUP_NAME = "scheduling.k8s.io/group-name"
_WAITING = "Pending"


class _Spec(PartialStruct, frozen=True):
    queue: str = ""


class _Status(PartialStruct, frozen=True):
    phase: str = ""
    conditions: tuple[Condition, ...] = ()


class PodGroup(Object, frozen=True, gc=False):
    spec: _Spec = _Spec()
    status: _Status = _Status()


class Volcano(GangScheduler):
    name = "Volcano"
    resource = POD_GROUP
    type = PodGroup
    rights = (read_rule(POD_GROUP), PolicyRule(POD_GROUP, ("create", "delete", "patch")))

    def spec(self, job: TrainingJob, scheduling_facts: SchedulingFacts) -> Manifest:  # noqa: ARG002 (interface)
        """Return the spec of the PodGroup. An elastic job starts with its minimum number of workers."""
        desired = job.spec.scheduling
        members = [(replica_group, min_pods(job.spec, replica_group)) for replica_group in replica_groups(job.spec)]
        spec: Manifest = {
            "minMember": sum(number for _, number in members),
            "queue": (desired and desired.queue) or _DEFAULT_QUEUE,
        }
        if desired and desired.priority_class:
            spec["priorityClassName"] = desired.priority_class
        resources = _together(members)
        return {**spec, "minResources": resources} if resources else spec

    def placement(self, object_: Object, scheduling_facts: SchedulingFacts, role: str) -> PodPlacement:  # noqa: ARG002 (interface)
        return PodPlacement(annotations={_GROUP_NAME: object_.metadata.name}, scheduler=_SCHEDULER)

    def pods_pending_reason(self, object_: Object) -> str | None:
        group = cast("PodGroup", object_)
        condition = next((row for row in group.status.conditions if row.type == "Unschedulable"), None)
        if condition is not None and condition.status == "True":
            return f"Volcano has not placed the pods ({condition.reason}): {' '.join(condition.message.split())}"
        if group.status.phase in {"", _WAITING}:
            return f"The pods wait in Volcano's queue {group.spec.queue}."
        return None


def _together(members: list[tuple[ReplicaGroup, int]]) -> dict[str, str]:
    """Return the sum of the resources of the pods that the job starts with."""
    total: dict[str, Decimal] = {}
    for replica_group, number in members:
        asked = {**replica_group.resources.limits, **replica_group.resources.requests}
        if replica_group.gpus:
            asked[GPU] = replica_group.gpus
        for name, amount in asked.items():
            total[name] = total.get(name, Decimal()) + quantities.parse(amount) * number
    return {name: _spelled(amount) for name, amount in sorted(total.items())}


def _spelled(amount: Decimal) -> str:
    """Return the quantity without an exponent: whole, or in thousandths."""
    return str(int(amount)) if amount == amount.to_integral_value() else f"{int(amount * 1000)}m"
