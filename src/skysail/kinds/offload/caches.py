"""Caches of placement: pods without a node, Jobs, cloud nodes, policies and namespaces."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from skysail.claims.limits.offload_policy import OffloadPolicy
from skysail.kinds.offload.objects import Job, NodeObject, Pod
from skysail.kube.api.objects import IndexKey, Object
from skysail.kube.api.resources import JOB, NODE, POD
from skysail.kube.cache.cache import Cache, index_by_owner, index_by_uid

_UNSCHEDULED = {"fieldSelector": "spec.nodeName=,status.phase=Pending"}
_CLOUD_NODES = {"labelSelector": "type=virtual-kubelet"}


def index_by_namespace(object_: Object) -> Iterable[IndexKey]:
    return (IndexKey(object_.metadata.namespace, ""),)


class Caches(msgspec.Struct, frozen=True):
    """Caches that placement reads. Pods leave the cache as soon as they have a node."""

    pods: Cache[Pod]
    jobs: Cache[Job]
    nodes: Cache[NodeObject]
    policies: Cache[OffloadPolicy]
    namespaces: Cache[Object]

    @classmethod
    def create(cls, policies: Cache[OffloadPolicy], namespaces: Cache[Object]) -> Caches:
        """Return new caches beside those that the process has already."""
        return cls(
            pods=Cache(POD, Pod, {"owner": index_by_owner, "namespace": index_by_namespace}, _UNSCHEDULED),
            jobs=Cache(JOB, Job, {"uid": index_by_uid}),
            nodes=Cache(NODE, NodeObject, selector=_CLOUD_NODES),
            policies=policies,
            namespaces=namespaces,
        )
