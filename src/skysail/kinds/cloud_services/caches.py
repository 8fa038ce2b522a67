"""Caches of Services, of pods at clouds, and of the EndpointSlices that Skysail wrote."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from skysail.claims.bridging.endpoint_slices import ENDPOINT_SLICE, MANAGED_BY, MANAGER, SERVICE_NAME
from skysail.kinds.cloud_services.objects import Pod, Service
from skysail.kube.api.objects import IndexKey, Object
from skysail.kube.api.resources import POD, SERVICE
from skysail.kube.cache.cache import Cache, index_by_label, index_by_owner, index_by_uid


def index_by_namespace(object_: Object) -> Iterable[IndexKey]:
    return (IndexKey(object_.metadata.namespace, ""),)


class Caches(msgspec.Struct, frozen=True):
    """`pods` has one cache per cloud node."""

    services: Cache[Service]
    pods: tuple[Cache[Pod], ...]
    slices: Cache[Object]

    @classmethod
    def create(cls, nodes: Iterable[str]) -> Caches:
        pod_indexes = {"uid": index_by_uid, "namespace": index_by_namespace}
        return cls(
            services=Cache(SERVICE, Service, {"namespace": index_by_namespace, "owner": index_by_owner}),
            pods=tuple(
                Cache(POD, Pod, pod_indexes, {"fieldSelector": f"spec.nodeName={node}"}) for node in sorted(nodes)
            ),
            slices=Cache(
                ENDPOINT_SLICE,
                Object,
                {"service": index_by_label(SERVICE_NAME)},
                {"labelSelector": f"{MANAGED_BY}={MANAGER}"},
            ),
        )
