"""Interface of a gang scheduler, and the observed state of its objects. Decisions are pure.

A gang is one object of the scheduler's own kind. The TrainingJob owns it, and it outlives attempts: a restart keeps its
quota. To support another scheduler, add a subclass and a registry entry.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec

from skysail.base.names import Annotation
from skysail.core.actions import Action, Delete, Manifest
from skysail.kinds.training.api.training_job import TrainingJob
from skysail.kinds.training.children import naming
from skysail.kinds.training.children.manifests import labels_for
from skysail.kube.api.objects import Object
from skysail.kube.api.rbac import PolicyRule
from skysail.kube.api.resources import Resource
from skysail.kube.client.client import Client

_NOTHING: Mapping[str, Any] = {}


class PodPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that the gang scheduler adds to the pods of one role."""

    labels: Mapping[str, str] = _NOTHING
    annotations: Mapping[str, str] = _NOTHING
    node_selector: Mapping[str, str] = _NOTHING
    tolerations: tuple[Manifest, ...] = ()
    scheduler: str = ""

    def on(self, job: Manifest) -> Manifest:
        """Return the manifest of the Job with these fields in its pod template."""
        template = job["spec"]["template"]
        metadata, spec = dict(template["metadata"]), dict(template["spec"])
        for name, more in (("labels", self.labels), ("annotations", self.annotations)):
            if more:
                metadata[name] = {**metadata.get(name, {}), **more}
        if self.node_selector:
            spec["nodeSelector"] = {**spec.get("nodeSelector", {}), **self.node_selector}
        if self.tolerations:
            known = spec.get("tolerations", [])
            spec["tolerations"] = [*known, *(each for each in self.tolerations if each not in known)]
        if self.scheduler:
            spec["schedulerName"] = self.scheduler
        return {**job, "spec": {**job["spec"], "template": {"metadata": metadata, "spec": spec}}}


class SchedulingFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Objects of others that a decision needs, read before an attempt starts.

    `priority`: value of the PriorityClass. `flavors`: placements by flavor name. Missing objects are left out.
    """

    priority: int | None = None
    flavors: Mapping[str, PodPlacement] = _NOTHING


class GangState(msgspec.Struct, frozen=True, kw_only=True):
    """Observed state of the gang scheduler of a job. `is_served` is None while discovery is incomplete.

    `objects`: gang objects of the job, of any scheduler. `is_gone`: a live read found no object of this scheduler.
    """

    is_served: bool | None = None
    objects: tuple[tuple[Resource, Object], ...] = ()
    is_gone: bool = False
    facts: SchedulingFacts = SchedulingFacts()

    def object(self, resource: Resource) -> Object | None:
        """Return the gang object, unless it is being deleted."""
        found = (each for of, each in self.objects if of == resource and not each.metadata.is_deleting)
        return next(found, None)

    def is_ending(self, resource: Resource) -> bool:
        return any(of == resource and each.metadata.is_deleting for of, each in self.objects)


class GangScheduler:
    """One gang scheduler. `object_` is an object of `resource`, decoded as `type`."""

    name: str
    resource: Resource
    type: type[Object]
    rights: tuple[PolicyRule, ...]

    async def facts(self, client: Client, job: TrainingJob, object_: Object | None) -> SchedulingFacts:  # noqa: ARG002 (interface)
        """Read the objects of others that an attempt needs before it starts."""
        return SchedulingFacts()

    def spec(self, job: TrainingJob, scheduling_facts: SchedulingFacts) -> Manifest:
        """Return the spec of the gang object."""
        raise NotImplementedError

    def pending_reason(self, object_: Object, scheduling_facts: SchedulingFacts) -> str | None:  # noqa: ARG002 (interface)
        """Return what keeps the attempt from starting, as a sentence, or None."""
        return None

    def pods_pending_reason(self, object_: Object) -> str | None:  # noqa: ARG002 (interface)
        """Return why existing pods do not run, if the scheduler says so."""
        return None

    def placement(self, object_: Object, scheduling_facts: SchedulingFacts, role: str) -> PodPlacement:
        raise NotImplementedError

    def eviction_reason(self, object_: Object | None) -> str | None:  # noqa: ARG002 (interface)
        """Return why the attempt lost its admission, as a sentence, or None.

        `object_` is None if the gang was deleted.
        """
        return None

    def confirm_release(self, object_: Object, now: datetime) -> Action | None:  # noqa: ARG002 (interface)
        """Return the action that confirms that no pod of an evicted attempt is left."""
        return None

    def report_ready(self, object_: Object, now: datetime, *, all_run: bool) -> Action | None:  # noqa: ARG002 (interface)
        """Return the action that reports whether all pods run."""
        return None

    def finish(self, object_: Object, now: datetime, phase: Literal["Succeeded", "Failed"]) -> Action | None:  # noqa: ARG002 (interface)
        """Return the action for a finished job, which needs no quota any more."""
        return Delete(self.resource, object_)

    def digest(self, spec: Manifest) -> str:
        return hashlib.sha256(msgspec.json.encode(spec, order="sorted")).hexdigest()[:16]


def manifest(scheduler: GangScheduler, job: TrainingJob, scheduling_facts: SchedulingFacts) -> Manifest:
    spec = scheduler.spec(job, scheduling_facts)
    metadata = {
        "name": naming.gang(job.metadata.name),
        "namespace": job.metadata.namespace,
        "labels": labels_for(job),
        "annotations": {Annotation.GANG_SPEC_HASH: scheduler.digest(spec)},
    }
    return {
        "apiVersion": scheduler.resource.api_version,
        "kind": scheduler.resource.kind,
        "metadata": metadata,
        "spec": spec,
    }


def fits(object_: Object, desired: Manifest) -> bool:
    """Return whether the gang object was created for the current spec."""
    made_for = (object_.metadata.annotations or {}).get(Annotation.GANG_SPEC_HASH)
    return bool(made_for == desired["metadata"]["annotations"][Annotation.GANG_SPEC_HASH])
