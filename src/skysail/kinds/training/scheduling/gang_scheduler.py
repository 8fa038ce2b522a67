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
from skysail.kinds.training.children.manifests import selector
from skysail.kube.api.objects import Object
from skysail.kube.api.rbac import Right
from skysail.kube.api.resources import Resource
from skysail.kube.client.client import Client

_NOTHING: Mapping[str, Any] = {}


class Placement(msgspec.Struct, frozen=True, kw_only=True):
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


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Objects of others that a decision needs, read before an attempt starts.

    `priority`: value of the PriorityClass. `flavors`: placements by flavor name. Missing objects are left out.
    """

    priority: int | None = None
    flavors: Mapping[str, Placement] = _NOTHING


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """Observed state of the gang scheduler of a job. `is_served` is None while discovery is incomplete.

    `objects`: gang objects of the job, of any scheduler. `is_gone`: a live read found no object of this scheduler.
    """

    is_served: bool | None = None
    objects: tuple[tuple[Resource, Object], ...] = ()
    is_gone: bool = False
    facts: Facts = Facts()

    def object(self, resource: Resource) -> Object | None:
        """Return the gang object, unless it is being deleted."""
        found = (each for of, each in self.objects if of == resource and not each.metadata.is_deleting)
        return next(found, None)

    def is_ending(self, resource: Resource) -> bool:
        return any(of == resource and each.metadata.is_deleting for of, each in self.objects)


class Gang:
    """One gang scheduler. `object_` is an object of `resource`, decoded as `type`."""

    name: str
    resource: Resource
    type: type[Object]
    rights: tuple[Right, ...]

    async def facts(self, client: Client, job: TrainingJob, object_: Object | None) -> Facts:  # noqa: ARG002 (interface)
        """Read the objects of others that an attempt needs before it starts."""
        return Facts()

    def spec(self, job: TrainingJob, facts: Facts) -> Manifest:
        """Return the spec of the gang object."""
        raise NotImplementedError

    def waits(self, object_: Object, facts: Facts) -> str | None:  # noqa: ARG002 (interface)
        """Return what keeps the attempt from starting, as a sentence, or None."""
        return None

    def complaint(self, object_: Object) -> str | None:  # noqa: ARG002 (interface)
        """Return why existing pods do not run, if the scheduler says so."""
        return None

    def placement(self, object_: Object, facts: Facts, role: str) -> Placement:
        raise NotImplementedError

    def revoked(self, object_: Object | None) -> str | None:  # noqa: ARG002 (interface)
        """Return why the attempt lost its admission, as a sentence, or None.

        `object_` is None if the gang was deleted.
        """
        return None

    def release(self, object_: Object, now: datetime) -> Action | None:  # noqa: ARG002 (interface)
        """Return the action that confirms that no pod of an evicted attempt is left."""
        return None

    def ready(self, object_: Object, now: datetime, *, all_run: bool) -> Action | None:  # noqa: ARG002 (interface)
        """Return the action that reports whether all pods run."""
        return None

    def over(self, object_: Object, now: datetime, phase: Literal["Succeeded", "Failed"]) -> Action | None:  # noqa: ARG002 (interface)
        """Return the action for a finished job, which needs no quota any more."""
        return Delete(self.resource, object_)

    def digest(self, spec: Manifest) -> str:
        return hashlib.sha256(msgspec.json.encode(spec, order="sorted")).hexdigest()[:16]


def manifest(gang: Gang, job: TrainingJob, facts: Facts) -> Manifest:
    spec = gang.spec(job, facts)
    metadata = {
        "name": naming.gang(job.metadata.name),
        "namespace": job.metadata.namespace,
        "labels": selector(job),
        "annotations": {Annotation.GANG_SPEC: gang.digest(spec)},
    }
    return {"apiVersion": gang.resource.api_version, "kind": gang.resource.kind, "metadata": metadata, "spec": spec}


def fits(object_: Object, wanted: Manifest) -> bool:
    """Return whether the gang object was created for the current spec."""
    made_for = (object_.metadata.annotations or {}).get(Annotation.GANG_SPEC)
    return bool(made_for == wanted["metadata"]["annotations"][Annotation.GANG_SPEC])
