"""Caches of endpoints, functions and their children."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from skysail.base.names import Label
from skysail.core.controller import Controller
from skysail.kinds.modal_endpoints.objects import Deployment, Pod
from skysail.kinds.modal_endpoints.snapshot import Snapshot
from skysail.kinds.modal_endpoints.types import KINDS
from skysail.kube.api.crd import CustomKind
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import CONFIG_MAP, DEPLOYMENT, POD, SERVICE
from skysail.kube.cache.cache import Cache, index_by_label, index_by_owner, index_by_uid

_SELECTOR = {"labelSelector": Label.ENDPOINT_UID.value}
# Pods are owned by ReplicaSets: a label leads to their endpoint or function.
owner_of_pod = index_by_label(Label.ENDPOINT_UID)


class Caches(msgspec.Struct, frozen=True):
    """Caches that hold only endpoints, functions and their children."""

    owners: Mapping[CustomKind, Cache[Any]]
    deployments: Cache[Deployment]
    services: Cache[Object]
    config_maps: Cache[Object]
    pods: Cache[Pod]

    @classmethod
    def create(cls) -> Caches:
        by_owner = {"owner": index_by_owner}
        return cls(
            owners={kind: Cache(kind.resource, kind.struct, {"uid": index_by_uid}) for kind in KINDS},
            deployments=Cache(DEPLOYMENT, Deployment, by_owner, _SELECTOR),
            services=Cache(SERVICE, Object, by_owner, _SELECTOR),
            config_maps=Cache(CONFIG_MAP, Object, by_owner, _SELECTOR),
            pods=Cache(POD, Pod, {"owner": owner_of_pod}, _SELECTOR),
        )

    @property
    def children(self) -> tuple[Cache[Any], ...]:
        return self.deployments, self.services, self.config_maps, self.pods

    def connect(self, controller: Controller[Snapshot], owners: Cache[Any]) -> None:
        """Enqueue an endpoint or function when one of its children changes."""
        for cache in self.children:
            controller.watch_owned(cache, owners, owner_of_pod if cache is self.pods else index_by_owner)
