"""Kueue: an attempt starts when the Workload is admitted, on the assigned flavors. Pure except for `facts`.

Skysail owns the Workload, so that all roles are one decision and a restart keeps its quota. Kueue takes the quota back
by the condition `Evicted`, and counts it as used until Skysail confirms that no pod is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, cast

import msgspec

from skysail.base.timestamps import timestamp
from skysail.core.actions import Manifest, PatchStatus
from skysail.kinds.training.api.training_job import TrainingJob
from skysail.kinds.training.children.manifests import build_children
from skysail.kinds.training.children.replica_groups import replica_groups
from skysail.kinds.training.scheduling.gang_scheduler import GangScheduler, PodPlacement, SchedulingFacts
from skysail.kube.api.objects import Object
from skysail.kube.api.rbac import PolicyRule, read_rule
from skysail.kube.api.resources import PRIORITY_CLASS, Resource
from skysail.kube.api.workloads import PartialStruct
from skysail.kube.client.client import Client

WORKLOAD = Resource("kueue.x-k8s.io", "v1beta2", "workloads", "Workload")
FLAVOR = Resource("kueue.x-k8s.io", "v1beta2", "resourceflavors", "ResourceFlavor", namespaced=False)

_DEFAULT_QUEUE = "default"
_RESERVED, _ADMITTED, _EVICTED, _READY = "QuotaReserved", "Admitted", "Evicted", "PodsReady"
_REQUEUED, _FINISHED = "Requeued", "Finished"
_STARTED = (_READY, "True", "Started", "All pods reached readiness and the workload is running")
_RECOVERING = (_READY, "False", "WaitForRecovery", "At least one pod has failed, waiting for recovery")
# After these reasons Kueue queues the Workload again; after others it waits for a change.
_QUEUED_AGAIN = {"Preempted", "NodeFailures"}
_KEPT_OF_CONTAINER = ("name", "image", "resources", "restartPolicy")
_KEPT_OF_POD = (
    "nodeSelector",
    "tolerations",
    "affinity",
    "priorityClassName",
    "runtimeClassName",
    "overhead",
    "resources",
    "resourceClaims",
    "restartPolicy",
)


class Condition(PartialStruct, frozen=True):
    """Condition with all fields, because a merge patch replaces the whole list."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int = 0


class _Assignment(PartialStruct, frozen=True):
    name: str
    flavors: dict[str, str] = msgspec.field(default_factory=dict)


class _Admission(PartialStruct, frozen=True):
    pod_set_assignments: tuple[_Assignment, ...] = ()


class _Update(PartialStruct, frozen=True):
    """Fields that an admission check adds to the pods of one role."""

    name: str
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    tolerations: tuple[dict[str, Any], ...] = ()


class _Check(PartialStruct, frozen=True):
    name: str
    state: str = ""
    message: str = ""
    pod_set_updates: tuple[_Update, ...] = ()


class _Spec(PartialStruct, frozen=True):
    queue_name: str = ""
    active: bool = True


class _Status(PartialStruct, frozen=True):
    conditions: tuple[Condition, ...] = ()
    admission: _Admission | None = None
    admission_checks: tuple[_Check, ...] = ()


class Workload(Object, frozen=True, gc=False):
    spec: _Spec = _Spec()
    status: _Status = _Status()

    def condition(self, type_: str) -> Condition | None:
        return next((condition for condition in self.status.conditions if condition.type == type_), None)

    def holds(self, type_: str) -> bool:
        condition = self.condition(type_)
        return condition is not None and condition.status == "True"


class _FlavorSpec(PartialStruct, frozen=True):
    node_labels: dict[str, str] = msgspec.field(default_factory=dict)
    tolerations: tuple[dict[str, Any], ...] = ()


class _Flavor(Object, frozen=True, gc=False):
    spec: _FlavorSpec = _FlavorSpec()


class _PriorityClass(Object, frozen=True, gc=False):
    value: int = 0


class Kueue(GangScheduler):
    name = "Kueue"
    resource = WORKLOAD
    type = Workload
    rights = (
        read_rule(WORKLOAD),
        PolicyRule(WORKLOAD, ("create", "delete", "patch")),
        PolicyRule(WORKLOAD, ("patch",), subresource="status"),
        PolicyRule(FLAVOR, ("get",)),
        PolicyRule(PRIORITY_CLASS, ("get",)),
    )

    async def facts(self, client: Client, job: TrainingJob, object_: Object | None) -> SchedulingFacts:
        names = _flavors(object_.status) if isinstance(object_, Workload) else ()
        flavors = {name: flavor for name in names if (flavor := await _flavor(client, name)) is not None}
        return SchedulingFacts(priority=await _priority(client, job), flavors=flavors)

    def spec(self, job: TrainingJob, scheduling_facts: SchedulingFacts) -> Manifest:
        desired = job.spec.scheduling
        spec: Manifest = {"queueName": (desired and desired.queue) or _DEFAULT_QUEUE, "podSets": _pod_sets(job)}
        if desired and desired.priority_class and scheduling_facts.priority is not None:
            reference = {"group": PRIORITY_CLASS.group, "kind": PRIORITY_CLASS.kind, "name": desired.priority_class}
            spec |= {"priorityClassRef": reference, "priority": scheduling_facts.priority}
        return spec

    def digest(self, spec: Manifest) -> str:
        return super().digest({**spec, "podSets": [_counted(each) for each in spec["podSets"]]})

    def pending_reason(self, object_: Object, scheduling_facts: SchedulingFacts) -> str | None:
        workload = cast("Workload", object_)
        if workload.holds(_FINISHED):
            return "The Workload of the job is finished in Kueue. Delete the Workload to queue the job again."
        if not workload.spec.active:
            return "The Workload of the job is not active in Kueue. Set its spec.active to true to queue it again."
        if workload.holds(_EVICTED) and workload.holds(_RESERVED):
            return self.eviction_reason(workload)
        if not workload.holds(_ADMITTED):
            return _queued(workload)
        missing = sorted(set(_flavors(workload.status)) - scheduling_facts.flavors.keys())
        if missing:
            return f"ResourceFlavor {missing[0]}, which Kueue assigned to the job, does not exist: create it."
        return None

    def placement(self, object_: Object, scheduling_facts: SchedulingFacts, role: str) -> PodPlacement:
        status = cast("Workload", object_).status
        names = _flavors(status, role)
        updates = [row for check in status.admission_checks for row in check.pod_set_updates if row.name == role]
        parts: list[PodPlacement | _Update] = [
            scheduling_facts.flavors[name] for name in names if name in scheduling_facts.flavors
        ]
        parts += updates
        return PodPlacement(
            labels=_joined(part.labels for part in parts),
            annotations=_joined(part.annotations for part in parts),
            node_selector=_joined(part.node_selector for part in parts),
            tolerations=tuple(each for part in parts for each in part.tolerations),
        )

    def eviction_reason(self, object_: Object | None) -> str | None:
        if not isinstance(object_, Workload):
            return "The Workload of the job was deleted, so the job lost its quota."
        if object_.holds(_EVICTED):
            evicted = object_.condition(_EVICTED)
            return f"Kueue evicted the job ({evicted.reason}): {evicted.message}" if evicted else None
        if not object_.spec.active:
            return "The Workload of the job was deactivated in Kueue."
        return None if object_.holds(_ADMITTED) else "Kueue took back the admission of the job."

    def confirm_release(self, object_: Object, now: datetime) -> PatchStatus | None:
        workload = cast("Workload", object_)
        evicted = workload.condition(_EVICTED)
        if evicted is None or not (workload.holds(_EVICTED) and workload.holds(_RESERVED)):
            return None
        again = "True" if evicted.reason in _QUEUED_AGAIN else "False"
        rows = [
            (_REQUEUED, again, evicted.reason, evicted.message),
            (_RESERVED, "False", "Pending", evicted.message),
            (_ADMITTED, "False", "NoReservation", "The workload has no reservation"),
        ]
        if workload.holds(_READY):
            rows.append((_READY, "False", "WaitForStart", "Not all pods are ready or succeeded"))
        return PatchStatus(WORKLOAD, workload, {"admission": None, **_conditions_patch(workload, now, *rows)})

    def report_ready(self, object_: Object, now: datetime, *, all_run: bool) -> PatchStatus | None:
        workload = cast("Workload", object_)
        if not workload.holds(_ADMITTED) or workload.holds(_READY) == all_run:
            return None
        row = _STARTED if all_run else _RECOVERING
        return PatchStatus(WORKLOAD, workload, _conditions_patch(workload, now, row))

    def finish(self, object_: Object, now: datetime, phase: Literal["Succeeded", "Failed"]) -> PatchStatus | None:
        """Set Finished. The Workload stays as a record. Pods that succeeded may never have been seen running."""
        workload = cast("Workload", object_)
        if workload.holds(_FINISHED):
            return None
        ran = (_STARTED,) if phase == "Succeeded" else ()
        ended = (_FINISHED, "True", phase, f"The TrainingJob has finished: {phase}.")
        return PatchStatus(WORKLOAD, workload, _conditions_patch(workload, now, *ran, ended))


def _pod_sets(job: TrainingJob) -> list[Manifest]:
    """Return one pod set per role, with the pod template that is the same in all attempts."""
    jobs = build_children(job, 0, None).jobs
    return [
        {"name": replica_group.role, "count": replica_group.replicas, "template": _asked(manifest["spec"]["template"])}
        for replica_group, (_, manifest) in zip(replica_groups(job.spec), jobs, strict=True)
    ]


def _asked(template: Manifest) -> Manifest:
    """Return the fields of the pod template that affect scheduling and quota."""
    pod = template["spec"]
    kept = {name: pod[name] for name in _KEPT_OF_POD if name in pod}
    for containers in ("containers", "initContainers"):
        if containers in pod:
            kept[containers] = [_some(each, _KEPT_OF_CONTAINER) for each in pod[containers]]
    return {"metadata": {}, "spec": kept}


def _counted(pod_set: Manifest) -> Manifest:
    """Return the pod set without images, because another image needs no new admission."""
    pod = dict(pod_set["template"]["spec"])
    for containers in ("containers", "initContainers"):
        pod[containers] = [{**each, "image": ""} for each in pod.get(containers, [])]
    return {**pod_set, "template": pod}


def _some(whole: Manifest, names: Iterable[str]) -> Manifest:
    return {name: whole[name] for name in names if name in whole}


def _queued(workload: Workload) -> str:
    """Return why the Workload is not admitted, with Kueue's message."""
    if workload.holds(_RESERVED):
        checks = [check for check in workload.status.admission_checks if check.state != "Ready"]
        states = [(f"{check.name} is {check.state}", check.message) for check in checks]
        pending_message = "; ".join(f"{state}: {message}" if message else state for state, message in states)
        return (
            f"Kueue reserved quota and waits for admission checks: {pending_message}."
            if pending_message
            else "Kueue is admitting the job."
        )
    reserved = workload.condition(_RESERVED)
    queue = workload.spec.queue_name
    if reserved is None:
        return f"The job waits in Kueue's queue {queue}, and Kueue has not processed it yet."
    return f"The job waits in Kueue's queue {queue} ({reserved.reason}): {reserved.message}"


def _flavors(status: _Status, role: str | None = None) -> tuple[str, ...]:
    """Return the names of the assigned flavors without duplicates."""
    rows = status.admission.pod_set_assignments if status.admission else ()
    return tuple(dict.fromkeys(name for row in rows if role in {None, row.name} for name in row.flavors.values()))


def _joined(parts: Iterable[Mapping[str, str]]) -> dict[str, str]:
    return {name: value for part in parts for name, value in part.items()}


def _conditions_patch(workload: Workload, now: datetime, *rows: tuple[str, str, str, str]) -> Manifest:
    """Return all conditions with these set. lastTransitionTime changes only with the status."""
    found = {condition.type: condition for condition in workload.status.conditions}
    for type_, status, reason, message in rows:
        old = found.get(type_)
        since = old.last_transition_time if old is not None and old.status == status else timestamp(now)
        found[type_] = Condition(type_, status, reason, message, since, workload.metadata.generation)
    return {"conditions": [msgspec.to_builtins(condition) for condition in found.values()]}


async def _flavor(client: Client, name: str) -> PodPlacement | None:
    flavor = await client.find(FLAVOR, "", name, _Flavor)
    if flavor is None:
        return None
    return PodPlacement(node_selector=flavor.spec.node_labels, tolerations=flavor.spec.tolerations)


async def _priority(client: Client, job: TrainingJob) -> int | None:
    """Return the value of the PriorityClass, or None if it does not exist: creating the pods then reports the error."""
    desired = job.spec.scheduling and job.spec.scheduling.priority_class
    if not desired:
        return None
    priority_class = await client.find(PRIORITY_CLASS, "", desired, _PriorityClass)
    return None if priority_class is None else priority_class.value
