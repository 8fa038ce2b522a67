"""Caches of models and their children. Both kinds share the caches of children."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from skysail.base.names import Label
from skysail.core.controller import Loop
from skysail.kinds.serving.api.types import KINDS
from skysail.kinds.serving.objects import Claim, Deployment, Job, Pod
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
from skysail.kube.cache.cache import Cache, label_values, owner_uids, uids

_OURS = {"labelSelector": Label.MODEL_UID}
# Pods are owned by Jobs and ReplicaSets: a label leads to their model.
model_of = label_values(Label.MODEL_UID)


class Caches(msgspec.Struct, frozen=True):
    """Caches that hold only models and their children, not other pods of the cluster."""

    models: Mapping[CustomKind, Cache[Any]]
    jobs: Cache[Job]
    pods: Cache[Pod]
    deployments: Cache[Deployment]
    services: Cache[Object]
    autoscalers: Cache[Object]
    claims: Cache[Claim]
    revisions: Cache[ControllerRevision]

    @classmethod
    def make(cls) -> Caches:
        by_owner = {"owner": owner_uids}
        return cls(
            models={kind: Cache(kind.resource, kind.struct, {"uid": uids}) for kind in KINDS},
            jobs=Cache(JOB, Job, by_owner, _OURS),
            pods=Cache(POD, Pod, {"model": model_of}, _OURS),
            deployments=Cache(DEPLOYMENT, Deployment, by_owner, _OURS),
            services=Cache(SERVICE, Object, by_owner, _OURS),
            autoscalers=Cache(HORIZONTAL_POD_AUTOSCALER, Object, by_owner, _OURS),
            claims=Cache(PERSISTENT_VOLUME_CLAIM, Claim, by_owner, _OURS),
            revisions=Cache(CONTROLLER_REVISION, ControllerRevision, by_owner, _OURS),
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

    def wake(self, loop: Loop[Snapshot], models: Cache[Any]) -> None:
        """Enqueue a model when one of its children changes.

        Pods are owned by a Job or ReplicaSet, so their label names the model.
        """
        for cache in self.children:
            if cache is not self.pods:
                loop.follow(cache, models)

        def changed(old: Pod | None, new: Pod | None) -> None:
            owners = {owner for pod in (old, new) if pod for owner in model_of(pod)}
            for root in [root for owner in owners for root in models.by("uid", owner)]:
                loop.queue.add(root.metadata.key)

        self.pods.subscribe(changed)
