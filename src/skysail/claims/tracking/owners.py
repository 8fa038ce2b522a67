"""Lookup of the pod that an instance runs for.

Namespace and UID identify the pod: a pod with the same name, or in another namespace, is not the owner.
"""

from __future__ import annotations

from collections.abc import Callable

from skysail.claims.snapshot import OwnerState
from skysail.claims.types import OwnerRef
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import POD
from skysail.kube.client.client import Client
from skysail.kube.client.errors import KubeError, NotFound


class PodOwnerLookup:
    """Looks up pods in the caches of this process (`known`), then at the API server."""

    def __init__(self, client: Client, known: Callable[[str], Object | None]) -> None:
        self._client = client
        self._known = known

    async def find(self, for_: OwnerRef) -> OwnerState:
        if self._cached(for_) is not None:
            return OwnerState.PRESENT
        try:
            pod = await self._client.get(POD, for_.namespace, for_.name, Object)
        except NotFound:
            return OwnerState.ABSENT
        except KubeError:
            return OwnerState.UNKNOWN
        return OwnerState.PRESENT if pod.metadata.uid == for_.uid else OwnerState.ABSENT

    def is_kept(self, for_: OwnerRef) -> bool:
        pod = self._cached(for_)
        return pod is not None and not pod.metadata.is_deleting

    def _cached(self, for_: OwnerRef) -> Object | None:
        pod = self._known(for_.uid)
        return pod if pod is not None and pod.metadata.identity == for_.identity else None
