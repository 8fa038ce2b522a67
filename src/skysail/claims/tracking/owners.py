"""Lookup of what an instance runs for: a pod, or the pods of a gang and their owner.

Namespace and UID identify an object: one with the same name, or in another namespace, is not the owner.
"""

from __future__ import annotations

from collections.abc import Callable

from skysail.claims.requirements import owner_kinds
from skysail.claims.snapshot import OwnerState
from skysail.claims.types import CloudInstance, MemberPod, OwnerRef, RankStatus
from skysail.kube.api.objects import IndexKey, Object
from skysail.kube.api.resources import POD, Resource
from skysail.kube.client.client import Client
from skysail.kube.client.errors import KubeError, NotFound, NotServed


class OwnerLookup:
    """Looks up pods in the caches of this process (`known`), then at the API server."""

    def __init__(self, client: Client, known: Callable[[str], Object | None]) -> None:
        self._client = client
        self._known = known

    async def find(self, claim: CloudInstance) -> OwnerState:
        """Return whether the owner exists. A gang needs all of its pods until their ranks have exited."""
        owner, members = claim.spec.owner, _active_members(claim)
        if not claim.spec.member_pods:
            return await self._find_pod(owner.namespace, owner.name, owner.uid)
        states = [await self._find_pod(owner.namespace, member.name, member.uid) for member in members]
        if OwnerState.ABSENT in states:
            return OwnerState.ABSENT
        if OwnerState.UNKNOWN in states:
            return OwnerState.UNKNOWN
        # Pods of a deleted gang are deleted by the garbage collector, so the gang matters only without any.
        if members:
            return OwnerState.PRESENT
        return OwnerState.ABSENT if await self._is_abandoned(claim) else await self._find_gang(owner)

    async def _is_abandoned(self, claim: CloudInstance) -> bool:
        """Return whether a claim was deleted and none of its pods is left, so that nothing reads it any more."""
        if not claim.metadata.is_deleting:
            return False
        namespace = claim.spec.owner.namespace
        states = [await self._find_pod(namespace, member.name, member.uid) for member in claim.spec.member_pods]
        return all(state is OwnerState.ABSENT for state in states)

    def is_kept(self, claim: CloudInstance) -> bool:
        """Return whether all pods of the claim are known to exist and are not being deleted."""
        owner = claim.spec.owner
        uids = [member.uid for member in claim.spec.member_pods] or [owner.uid]
        pods = [self._cached(owner.namespace, uid) for uid in uids]
        return all(pod is not None and not pod.metadata.is_deleting for pod in pods)

    async def _find_pod(self, namespace: str, name: str, uid: str) -> OwnerState:
        if self._cached(namespace, uid) is not None:
            return OwnerState.PRESENT
        return await self._read(POD, namespace, name, uid)

    async def _find_gang(self, owner: OwnerRef) -> OwnerState:
        resource = owner_kinds.resource_of(owner.api_version, owner.kind)
        if resource is None:
            return OwnerState.UNKNOWN
        return await self._read(resource, owner.namespace, owner.name, owner.uid, or_deleting=False)

    async def _read(
        self, resource: Resource, namespace: str, name: str, uid: str, *, or_deleting: bool = True
    ) -> OwnerState:
        try:
            found = await self._client.get(resource, namespace, name, Object)
        except (NotFound, NotServed):
            return OwnerState.ABSENT
        except KubeError:
            return OwnerState.UNKNOWN
        is_there = found.metadata.uid == uid and (or_deleting or not found.metadata.is_deleting)
        return OwnerState.PRESENT if is_there else OwnerState.ABSENT

    def _cached(self, namespace: str, uid: str) -> Object | None:
        pod = self._known(uid)
        return pod if pod is not None and pod.metadata.identity == IndexKey(namespace, uid) else None


def _active_members(claim: CloudInstance) -> list[MemberPod]:
    """Return the pods whose ranks have not exited. A terminated claim has none."""
    if claim.status.state == "Terminated":
        return []
    members = claim.spec.member_pods
    ranks = (*claim.status.ranks, *(RankStatus(),) * len(members))
    return [member for member, rank in zip(members, ranks, strict=False) if rank.exit is None]
