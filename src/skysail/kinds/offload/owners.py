"""Owner chain of a pod: Job, CronJob, Deployment, JobSet, TrainJob, PyTorchJob, Katib trial, KServe and more.

Read live, because most of these kinds are not cached, and remembered for a short time. Only objects in the namespace of
the pod count, and only with the UID that the owner reference names: tenants write owner references.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from skysail.base.names import Annotation
from skysail.base.ttl_cache import Memory
from skysail.kinds.offload.plan import gangs
from skysail.kinds.offload.plan.gangs import Owner
from skysail.kube.api.objects import Object, OwnerReference
from skysail.kube.api.rbac import PolicyRule
from skysail.kube.api.resources import Resource
from skysail.kube.client.client import Client
from skysail.kube.client.errors import KubeError, NotFound, NotServed

# Pod, ReplicaSet, Deployment, Revision, Configuration, Service, InferenceService is the longest known chain.
_MAX_DEPTH = 8
_REMEMBERED_SECONDS = 30.0
_MODAL_RUNTIME = "modal-"
_MODAL_VARIABLE = "MODAL_ENABLED"

# Plural by group and kind. An owner of another kind ends the chain.
_PLURALS = {
    ("batch", "Job"): "jobs",
    ("batch", "CronJob"): "cronjobs",
    ("apps", "ReplicaSet"): "replicasets",
    ("apps", "Deployment"): "deployments",
    ("apps", "StatefulSet"): "statefulsets",
    ("jobset.x-k8s.io", "JobSet"): "jobsets",
    ("trainer.kubeflow.org", "TrainJob"): "trainjobs",
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): "leaderworkersets",
    ("kubeflow.org", "PyTorchJob"): "pytorchjobs",
    ("kubeflow.org", "TFJob"): "tfjobs",
    ("kubeflow.org", "XGBoostJob"): "xgboostjobs",
    ("kubeflow.org", "MPIJob"): "mpijobs",
    ("kubeflow.org", "PaddleJob"): "paddlejobs",
    ("kubeflow.org", "JAXJob"): "jaxjobs",
    ("kubeflow.org", "Trial"): "trials",
    ("kubeflow.org", "Experiment"): "experiments",
    ("serving.kserve.io", "InferenceService"): "inferenceservices",
    ("serving.knative.dev", "Revision"): "revisions",
    ("serving.knative.dev", "Configuration"): "configurations",
    ("serving.knative.dev", "Service"): "services",
}

POLICY_RULES = tuple(
    PolicyRule(Resource(group, "*", plural, kind), ("get",)) for (group, kind), plural in _PLURALS.items()
)


class _OwnerObject(Object, frozen=True, gc=False):
    spec: dict[str, Any] = msgspec.field(default_factory=dict)


class OwnerLookup:
    """Looks up owner chains. Safe to call by many tasks at once."""

    def __init__(self, client: Client, clock: Callable[[], float]) -> None:
        self._client = client
        self._memory: Memory[tuple[str, str], _OwnerObject | None] = Memory(clock)

    async def find(self, object_: Object) -> tuple[Owner, ...] | None:
        """Return the owners, nearest first. Returns None if one of them could not be read.

        An owner that is deleted, or whose kind the cluster does not serve, ends the chain.
        """
        namespace, reference = object_.metadata.namespace, object_.metadata.controller
        chain: list[Owner] = []
        while reference is not None and len(chain) < _MAX_DEPTH:
            try:
                found = await self._get(namespace, reference)
            except KubeError:
                return None
            if found is None:
                chain.append(Owner(kind=reference.kind, name=reference.name))
                break
            chain.append(_owner(reference, found))
            reference = found.metadata.controller
        return tuple(chain)

    def forget(self, owner: Object) -> None:
        """Read this owner again next time, because it has changed."""
        self._memory.discard((owner.metadata.namespace, owner.metadata.uid))

    async def _get(self, namespace: str, reference: OwnerReference) -> _OwnerObject | None:
        resource = _resource(reference)
        if resource is None:
            return None
        found = await self._memory.get_or_fetch(
            (namespace, reference.uid),
            lambda: self._fetch(resource, namespace, reference.name),
            ttl=lambda found: _REMEMBERED_SECONDS if found else 0.0,
        )
        is_owner = found is not None and found.metadata.identity == (namespace, reference.uid)
        return found if is_owner else None

    async def _fetch(self, resource: Resource, namespace: str, name: str) -> _OwnerObject | None:
        try:
            return await self._client.get(resource, namespace, name, _OwnerObject)
        except (NotFound, NotServed):
            return None


def _resource(reference: OwnerReference) -> Resource | None:
    group, _, version = reference.api_version.rpartition("/")
    plural = _PLURALS.get((group, reference.kind))
    return Resource(group, version, plural, reference.kind) if plural else None


def _owner(reference: OwnerReference, found: _OwnerObject) -> Owner:
    annotations: Mapping[str, str] = found.metadata.annotations or {}
    if reference.kind == "TrainJob" and _is_for_modal(found.spec):
        annotations = {Annotation.MODAL_ENABLED.value: "true", **annotations}
    return Owner(
        kind=reference.kind,
        name=reference.name,
        annotations=annotations,
        labels=found.metadata.labels or {},
        members=gangs.members(reference.kind, found.spec),
    )


def _is_for_modal(spec: Mapping[str, Any]) -> bool:
    """Return whether a TrainJob asks for Modal by its runtime or by an environment variable."""
    runtime = str((spec.get("runtimeRef") or {}).get("name") or "")
    variables = (spec.get("trainer") or {}).get("env") or ()
    return runtime.startswith(_MODAL_RUNTIME) or any(
        row.get("name") == _MODAL_VARIABLE and str(row.get("value", "true")).casefold() != "false" for row in variables
    )
