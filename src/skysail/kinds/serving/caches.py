"""Caches of models and their children. Both kinds share the caches of children."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from skysail.base.names import Label
from skysail.core.controller import Controller
from skysail.kinds.serving.api.types import KINDS
from skysail.kinds.serving.objects import Deployment, Job, PersistentVolumeClaim, Pod
from skysail.kinds.serving.snapshot import Snapshot
from skysail.kinds.serving.spec.revisions import ControllerRevision
from skysail.kube.api.crd import CustomKind
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import (
    CONTROLLER_REVISION,
    DEPLOYMENT,
    HORIZONTAL_POD_AUTOSCALER,
    JOB,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    SERVICE,
)
from skysail.kube.cache.cache import Cache, index_by_label, index_by_owner, index_by_uid

_LABEL_SELECTOR = {"labelSelector": Label.MODEL_UID}
# Pods are owned by Jobs and ReplicaSets: a label leads to their model.
model_of = index_by_label(Label.MODEL_UID)


class Caches(msgspec.Struct, frozen=True):
    """Caches that hold only models and their children, not other pods of the cluster."""

    models: Mapping[CustomKind, Cache[Any]]
    jobs: Cache[Job]
    pods: Cache[Pod]
    deployments: Cache[Deployment]
    services: Cache[Object]
    autoscalers: Cache[Object]
    claims: Cache[PersistentVolumeClaim]
    revisions: Cache[ControllerRevision]

    @classmethod
    def create(cls) -> Caches:
        by_owner = {"owner": index_by_owner}
        return cls(
            models={kind: Cache(kind.resource, kind.struct, {"uid": index_by_uid}) for kind in KINDS},
            jobs=Cache(JOB, Job, by_owner, _LABEL_SELECTOR),
            pods=Cache(POD, Pod, {"model": model_of}, _LABEL_SELECTOR),
            deployments=Cache(DEPLOYMENT, Deployment, by_owner, _LABEL_SELECTOR),
            services=Cache(SERVICE, Object, by_owner, _LABEL_SELECTOR),
            autoscalers=Cache(HORIZONTAL_POD_AUTOSCALER, Object, by_owner, _LABEL_SELECTOR),
            claims=Cache(PERSISTENT_VOLUME_CLAIM, PersistentVolumeClaim, by_owner, _LABEL_SELECTOR),
            revisions=Cache(CONTROLLER_REVISION, ControllerRevision, by_owner, _LABEL_SELECTOR),
        )

    @property
    def children(self) -> tuple[Cache[Any], ...]:
        return (
            self.jobs,
            self.pods,
            self.deployments,
            self.services,
            self.autoscalers,
            self.claims,
            self.revisions,
        )

    def connect(self, controller: Controller[Snapshot], models: Cache[Any]) -> None:
        """Enqueue a model when one of its children changes.

        Pods are owned by a Job or ReplicaSet, so their label names the model.
        """
        for cache in self.children:
            controller.watch_owned(cache, models, model_of if cache is self.pods else index_by_owner)
