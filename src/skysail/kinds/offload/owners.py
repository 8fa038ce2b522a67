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
from skysail.claims.requirements import owner_kinds
from skysail.kinds.offload.plan import gangs
from skysail.kinds.offload.plan.gangs import Owner
from skysail.kinds.offload.plan.train_job_request import asks_for_modal
from skysail.kube.api.objects import Object, OwnerReference
from skysail.kube.api.rbac import PolicyRule
from skysail.kube.api.resources import Resource
from skysail.kube.client.client import Client
from skysail.kube.client.errors import KubeError, NotFound

# Pod, ReplicaSet, Deployment, Revision, Configuration, Service, InferenceService is the longest known chain.
_MAX_DEPTH = 8
_REMEMBERED_SECONDS = 30.0

POLICY_RULES = tuple(
    PolicyRule(Resource(group, "*", plural, kind), ("get",)) for (group, kind), plural in owner_kinds.PLURALS.items()
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

        An owner that is deleted, or whose kind Skysail does not know, ends the chain. A kind that the cluster does not
        serve now does not: its object may have the cost cap that its pods share.
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
        resource = owner_kinds.resource_of(reference.api_version, reference.kind)
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
        except NotFound:
            return None


def _owner(reference: OwnerReference, found: _OwnerObject) -> Owner:
    annotations: Mapping[str, str] = found.metadata.annotations or {}
    if reference.kind == "TrainJob" and asks_for_modal(found.spec):
        annotations = {Annotation.MODAL_ENABLED.value: "true", **annotations}
    return Owner(
        kind=reference.kind,
        name=reference.name,
        annotations=annotations,
        uid=reference.uid,
        api_version=reference.api_version,
        labels=found.metadata.labels or {},
        groups=gangs.member_groups(reference.kind, found.spec),
        has_ranks=gangs.has_ranks(reference.kind, found.spec),
        ends_together=gangs.ends_together(reference.kind, found.spec),
    )
