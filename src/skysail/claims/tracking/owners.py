"""Lookup of the pod that an instance runs for.

Namespace and UID identify the pod: a pod with the same name, or in another namespace, is not the owner.
"""

from __future__ import annotations

from collections.abc import Callable

from skysail.claims.snapshot import Owner
from skysail.claims.types import Beneficiary
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import POD
from skysail.kube.client.client import Client
from skysail.kube.client.errors import KubeError, NotFound


class PodOwners:
    """Looks up pods in the caches of this process (`known`), then at the API server."""

    def __init__(self, client: Client, known: Callable[[str], Object | None]) -> None:
        self._client = client
        self._known = known

    async def find(self, for_: Beneficiary) -> Owner:
        if self._cached(for_) is not None:
            return Owner.PRESENT
        try:
            pod = await self._client.get(POD, for_.namespace, for_.name, Object)
        except NotFound:
            return Owner.ABSENT
        except KubeError:
            return Owner.UNKNOWN
        return Owner.PRESENT if pod.metadata.uid == for_.uid else Owner.ABSENT

    def stays(self, for_: Beneficiary) -> bool:
        pod = self._cached(for_)
        return pod is not None and not pod.metadata.is_deleting

    def _cached(self, for_: Beneficiary) -> Object | None:
        pod = self._known(for_.uid)
        return pod if pod is not None and pod.metadata.identity == for_.identity else None
