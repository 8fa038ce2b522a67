"""Frozen input of plans."""

from __future__ import annotations

from datetime import datetime

import msgspec

from skysail.claims.types import CloudInstance
from skysail.kinds.offload.objects import Job, Pod
from skysail.kinds.offload.plan.placement import PlacementFacts
from skysail.kube.api.objects import Object


class PodSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A pod without a node, and the facts for its placement."""

    object: Pod
    facts: PlacementFacts
    now: datetime


class JobSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A Job, and the claims of its pods at RunPod that have or may have an instance, by name."""

    object: Job
    claims: tuple[CloudInstance, ...]


class CloudPodSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A pod on the node of a cloud, and its claims. `is_at_modal`: the pod gets the annotations of Modal."""

    object: Object
    claims: tuple[CloudInstance, ...]
    is_at_modal: bool = True
