"""What the engine asks of a gang scheduler, and what it knows of one. Decisions are pure.

A gang is one object of the scheduler's own kind, which belongs to the TrainingJob and outlives its attempts: a restart
keeps its place. One more scheduler is one more subclass and one more row of the registry.
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
    """What a scheduler wants to be said in the pods of one role, beside what the job says."""

    labels: Mapping[str, str] = _NOTHING
    annotations: Mapping[str, str] = _NOTHING
    node_selector: Mapping[str, str] = _NOTHING
    tolerations: tuple[Manifest, ...] = ()
    scheduler: str = ""

    def on(self, job: Manifest) -> Manifest:
        """The manifest of a Job with this in its pods."""
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
    """Objects of others that a decision needs, read when an attempt is to begin: a value for the job's priority, and
    placements by the name of their flavor. One that is not there is left out.
    """

    priority: int | None = None
    flavors: Mapping[str, Placement] = _NOTHING


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the gang scheduler that a job asks for. `is_served` is None while nobody knows.

    `objects` are all that belong to the job, of any scheduler; `is_gone`: the API server itself has none of this one's.
    """

    is_served: bool | None = None
    objects: tuple[tuple[Resource, Object], ...] = ()
    is_gone: bool = False
    facts: Facts = Facts()

    def object(self, resource: Resource) -> Object | None:
        """The gang, where it is there to stay."""
        found = (each for of, each in self.objects if of == resource and not each.metadata.is_deleting)
        return next(found, None)

    def is_ending(self, resource: Resource) -> bool:
        return any(of == resource and each.metadata.is_deleting for of, each in self.objects)


class Gang:
    """One gang scheduler. `object_` is always one of `resource`, read as `type`."""

    name: str
    resource: Resource
    type: type[Object]
    rights: tuple[Right, ...]
    advice: str

    async def facts(self, client: Client, job: TrainingJob, object_: Object | None) -> Facts:  # noqa: ARG002 (interface)
        """What has to be read of others before an attempt begins."""
        return Facts()

    def spec(self, job: TrainingJob, facts: Facts) -> Manifest:
        """What the job asks for: the spec of its gang."""
        raise NotImplementedError

    def waits(self, object_: Object, facts: Facts) -> str | None:  # noqa: ARG002 (interface)
        """What keeps an attempt from beginning, as a sentence."""
        return None

    def complaint(self, object_: Object) -> str | None:  # noqa: ARG002 (interface)
        """Why pods that are there do not run, as far as the scheduler tells it."""
        return None

    def placement(self, object_: Object, facts: Facts, role: str) -> Placement:
        raise NotImplementedError

    def revoked(self, object_: Object | None) -> str | None:  # noqa: ARG002 (interface)
        """Why the pods of an attempt have to go, as a sentence. None stands for a gang that was deleted."""
        return None

    def release(self, object_: Object, now: datetime) -> Action | None:  # noqa: ARG002 (interface)
        """Confirm that no pod of a revoked attempt is left."""
        return None

    def ready(self, object_: Object, now: datetime, *, all_run: bool) -> Action | None:  # noqa: ARG002 (interface)
        """Tell whether all pods run."""
        return None

    def over(self, object_: Object, now: datetime, phase: Literal["Succeeded", "Failed"]) -> Action | None:  # noqa: ARG002 (interface)
        """The job is over: nothing is asked for any more."""
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
    """Whether the gang was made for what the job asks for now."""
    made_for = (object_.metadata.annotations or {}).get(Annotation.GANG_SPEC)
    return bool(made_for == wanted["metadata"]["annotations"][Annotation.GANG_SPEC])
