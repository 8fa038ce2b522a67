"""Kueue: a job begins when its Workload is admitted, on the flavors that it was admitted with. Pure but for one read.

We own the Workload, so that all roles are one decision and a restart keeps its quota. Kueue takes the quota back by the
condition `Evicted`, and counts it as taken until we say that no pod is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, cast

import msgspec

from skysail.base.timestamps import timestamp
from skysail.core.actions import Manifest, PatchStatus
from skysail.kinds.training.api.training_job import TrainingJob
from skysail.kinds.training.children.manifests import children
from skysail.kinds.training.children.replica_groups import groups
from skysail.kinds.training.scheduling.gang_scheduler import Facts, Gang, Placement
from skysail.kube.api.objects import Object
from skysail.kube.api.rbac import Right, reading
from skysail.kube.api.resources import PRIORITY_CLASS, Resource
from skysail.kube.api.workloads import Read
from skysail.kube.client.client import Client
from skysail.kube.client.errors import NotFound

WORKLOAD = Resource("kueue.x-k8s.io", "v1beta2", "workloads", "Workload")
FLAVOR = Resource("kueue.x-k8s.io", "v1beta2", "resourceflavors", "ResourceFlavor", namespaced=False)

_DEFAULT_QUEUE = "default"
_RESERVED, _ADMITTED, _EVICTED, _READY = "QuotaReserved", "Admitted", "Evicted", "PodsReady"
_REQUEUED, _FINISHED = "Requeued", "Finished"
_STARTED = (_READY, "True", "Started", "All pods reached readiness and the workload is running")
_RECOVERING = (_READY, "False", "WaitForRecovery", "At least one pod has failed, waiting for recovery")
# After these Kueue queues the Workload again as it is; after others it waits for what ended it to be mended.
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


class Condition(Read, frozen=True):
    """Written back whole, because a list is replaced as one."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int = 0


class _Assignment(Read, frozen=True):
    name: str
    flavors: dict[str, str] = msgspec.field(default_factory=dict)


class _Admission(Read, frozen=True):
    pod_set_assignments: tuple[_Assignment, ...] = ()


class _Update(Read, frozen=True):
    """What an admission check wants to be said in the pods of one role."""

    name: str
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    tolerations: tuple[dict[str, Any], ...] = ()


class _Check(Read, frozen=True):
    name: str
    state: str = ""
    message: str = ""
    pod_set_updates: tuple[_Update, ...] = ()


class _Spec(Read, frozen=True):
    queue_name: str = ""
    active: bool = True


class _Status(Read, frozen=True):
    conditions: tuple[Condition, ...] = ()
    admission: _Admission | None = None
    admission_checks: tuple[_Check, ...] = ()


class Workload(Object, frozen=True, gc=False):
    spec: _Spec = _Spec()
    status: _Status = _Status()

    def condition(self, type_: str) -> Condition | None:
        return next((row for row in self.status.conditions if row.type == type_), None)

    def holds(self, type_: str) -> bool:
        found = self.condition(type_)
        return found is not None and found.status == "True"


class _FlavorSpec(Read, frozen=True):
    node_labels: dict[str, str] = msgspec.field(default_factory=dict)
    tolerations: tuple[dict[str, Any], ...] = ()


class _Flavor(Object, frozen=True, gc=False):
    spec: _FlavorSpec = _FlavorSpec()


class _PriorityClass(Object, frozen=True, gc=False):
    value: int = 0


class Kueue(Gang):
    name = "Kueue"
    resource = WORKLOAD
    type = Workload
    rights = (
        reading(WORKLOAD),
        Right(WORKLOAD, ("create", "delete", "patch")),
        Right(WORKLOAD, ("patch",), subresource="status"),
        Right(FLAVOR, ("get",)),
        Right(PRIORITY_CLASS, ("get",)),
    )
    advice = "Install a Kueue that does"

    async def facts(self, client: Client, job: TrainingJob, object_: Object | None) -> Facts:
        names = _flavors(object_.status) if isinstance(object_, Workload) else ()
        flavors = {name: flavor for name in names if (flavor := await _flavor(client, name)) is not None}
        return Facts(priority=await _priority(client, job), flavors=flavors)

    def spec(self, job: TrainingJob, facts: Facts) -> Manifest:
        wanted = job.spec.scheduling
        spec: Manifest = {"queueName": (wanted and wanted.queue) or _DEFAULT_QUEUE, "podSets": _pod_sets(job)}
        if wanted and wanted.priority_class and facts.priority is not None:
            reference = {"group": PRIORITY_CLASS.group, "kind": PRIORITY_CLASS.kind, "name": wanted.priority_class}
            spec |= {"priorityClassRef": reference, "priority": facts.priority}
        return spec

    def digest(self, spec: Manifest) -> str:
        return super().digest({**spec, "podSets": [_counted(each) for each in spec["podSets"]]})

    def waits(self, object_: Object, facts: Facts) -> str | None:
        workload = cast("Workload", object_)
        if workload.holds(_FINISHED):
            return "Kueue has ended the job's Workload. Delete the Workload, and the job is queued anew."
        if not workload.spec.active:
            return "The job's Workload is not active in Kueue. Set its spec.active to true to queue it again."
        if workload.holds(_EVICTED) and workload.holds(_RESERVED):
            return self.revoked(workload)
        if not workload.holds(_ADMITTED):
            return _queued(workload)
        missing = sorted(set(_flavors(workload.status)) - facts.flavors.keys())
        if missing:
            return f"Kueue admitted the job to ResourceFlavor {missing[0]}, which does not exist. Create it."
        return None

    def placement(self, object_: Object, facts: Facts, role: str) -> Placement:
        status = cast("Workload", object_).status
        names = _flavors(status, role)
        updates = [row for check in status.admission_checks for row in check.pod_set_updates if row.name == role]
        parts: list[Placement | _Update] = [facts.flavors[name] for name in names if name in facts.flavors]
        parts += updates
        return Placement(
            labels=_joined(part.labels for part in parts),
            annotations=_joined(part.annotations for part in parts),
            node_selector=_joined(part.node_selector for part in parts),
            tolerations=tuple(each for part in parts for each in part.tolerations),
        )

    def revoked(self, object_: Object | None) -> str | None:
        if not isinstance(object_, Workload):
            return "The job's Workload was deleted, and its quota with it."
        if object_.holds(_EVICTED):
            evicted = object_.condition(_EVICTED)
            return f"Kueue evicted the job ({evicted.reason}): {evicted.message}" if evicted else None
        if not object_.spec.active:
            return "The job's Workload was deactivated in Kueue."
        return None if object_.holds(_ADMITTED) else "Kueue has taken the job's admission back."

    def release(self, object_: Object, now: datetime) -> PatchStatus | None:
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
        return PatchStatus(WORKLOAD, workload, {"admission": None, **_told(workload, now, *rows)})

    def ready(self, object_: Object, now: datetime, *, all_run: bool) -> PatchStatus | None:
        workload = cast("Workload", object_)
        if not workload.holds(_ADMITTED) or workload.holds(_READY) == all_run:
            return None
        row = _STARTED if all_run else _RECOVERING
        return PatchStatus(WORKLOAD, workload, _told(workload, now, row))

    def over(self, object_: Object, now: datetime, phase: Literal["Succeeded", "Failed"]) -> PatchStatus | None:
        """Kept as the record of what the queue gave. Of pods that did their work nobody may have seen that they ran."""
        workload = cast("Workload", object_)
        if workload.holds(_FINISHED):
            return None
        ran = (_STARTED,) if phase == "Succeeded" else ()
        ended = (_FINISHED, "True", phase, f"The TrainingJob is over: {phase}.")
        return PatchStatus(WORKLOAD, workload, _told(workload, now, *ran, ended))


def _pod_sets(job: TrainingJob) -> list[Manifest]:
    """One for each role, as its pods are in any attempt."""
    jobs = children(job, 0, None).jobs
    return [
        {"name": group.role, "count": group.replicas, "template": _asked(manifest["spec"]["template"])}
        for group, (_, manifest) in zip(groups(job.spec), jobs, strict=True)
    ]


def _asked(template: Manifest) -> Manifest:
    """Of a pod, what decides where it can run and what it takes."""
    pod = template["spec"]
    kept = {name: pod[name] for name in _KEPT_OF_POD if name in pod}
    for containers in ("containers", "initContainers"):
        if containers in pod:
            kept[containers] = [_some(each, _KEPT_OF_CONTAINER) for each in pod[containers]]
    return {"metadata": {}, "spec": kept}


def _counted(pod_set: Manifest) -> Manifest:
    """What a quota is counted by: another image does not lose it."""
    pod = dict(pod_set["template"]["spec"])
    for containers in ("containers", "initContainers"):
        pod[containers] = [{**each, "image": ""} for each in pod.get(containers, [])]
    return {**pod_set, "template": pod}


def _some(whole: Manifest, names: Iterable[str]) -> Manifest:
    return {name: whole[name] for name in names if name in whole}


def _queued(workload: Workload) -> str:
    """Why it is not admitted, in Kueue's own words."""
    if workload.holds(_RESERVED):
        checks = [check for check in workload.status.admission_checks if check.state != "Ready"]
        told = "".join(f" {check.name} is {check.state}{': ' * bool(check.message)}{check.message}" for check in checks)
        return f"Kueue has set quota aside, and waits for admission checks:{told}." if told else "Kueue admits the job."
    reserved = workload.condition(_RESERVED)
    queue = workload.spec.queue_name
    if reserved is None:
        return f"The job is in Kueue's queue {queue}, and nobody has looked at it yet."
    return f"The job waits in Kueue's queue {queue} ({reserved.reason}): {reserved.message}"


def _flavors(status: _Status, role: str | None = None) -> tuple[str, ...]:
    """The names of those that were assigned, each once."""
    rows = status.admission.pod_set_assignments if status.admission else ()
    return tuple(dict.fromkeys(name for row in rows if role in {None, row.name} for name in row.flavors.values()))


def _joined(parts: Iterable[Mapping[str, str]]) -> dict[str, str]:
    return {name: value for part in parts for name, value in part.items()}


def _told(workload: Workload, now: datetime, *rows: tuple[str, str, str, str]) -> Manifest:
    """All conditions, with these among them: one per type, and its time moves only with its status."""
    found = {row.type: row for row in workload.status.conditions}
    for type_, status, reason, message in rows:
        old = found.get(type_)
        since = old.last_transition_time if old is not None and old.status == status else timestamp(now)
        found[type_] = Condition(type_, status, reason, message, since, workload.metadata.generation)
    return {"conditions": [msgspec.to_builtins(row) for row in found.values()]}


async def _flavor(client: Client, name: str) -> Placement | None:
    try:
        spec = (await client.get(FLAVOR, "", name, _Flavor)).spec
    except NotFound:
        return None
    return Placement(node_selector=spec.node_labels, tolerations=spec.tolerations)


async def _priority(client: Client, job: TrainingJob) -> int | None:
    """The pods are refused where the class does not exist; that is told when they are made."""
    wanted = job.spec.scheduling and job.spec.scheduling.priority_class
    if not wanted:
        return None
    try:
        return (await client.get(PRIORITY_CLASS, "", wanted, _PriorityClass)).value
    except NotFound:
        return None
