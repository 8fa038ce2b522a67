"""Pods, policies, nodes and clouds for tests of placement."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from skysail.base.settings import NodeSettings
from skysail.claims.limits.offload_policy import OffloadPolicy
from skysail.cloud.offers import OfferList
from skysail.cloud.simulated.vendors import MODAL, RUNPOD
from skysail.kinds.offload.objects import NodeObject, Pod
from skysail.kinds.offload.plan.facts import Cloud, Observation
from skysail.kinds.offload.plan.placement import PlacementConfig

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
NODES = {
    "modal.com": NodeSettings(provider="modal", port=1, taint="modal-operator.io/virtual=true:NoSchedule"),
    "runpod-virtual-node": NodeSettings(
        provider="runpod", port=2, taint="runpod.io/virtual=true:NoSchedule", labels={"runpod.io/virtual": "true"}
    ),
}
GPU = {"limits": {"nvidia.com/gpu": "1"}}


def pod(spec: dict[str, Any] | None = None, status: dict[str, Any] | None = None, **metadata: Any) -> Pod:
    """Return a pod of namespace team with one container."""
    container = {"name": "main", "image": "python:3.11"}
    manifest = {
        "metadata": {
            "name": "train",
            "namespace": "team",
            "uid": "u1",
            "resourceVersion": "7",
            "creationTimestamp": "2026-01-01T11:59:00Z",
            **metadata,
        },
        "spec": {"containers": [container], **(spec or {})},
        "status": status or {},
    }
    return msgspec.convert(manifest, Pod)


def gpu_pod(**metadata: Any) -> Pod:
    return pod({"containers": [{"name": "main", "image": "python:3.11", "resources": GPU}]}, **metadata)


def unschedulable(since: str = "2026-01-01T11:59:00Z") -> dict[str, Any]:
    """Return the status of a pod that the scheduler refused."""
    row = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": since}
    return {"conditions": [row]}


def policy(name: str = "default", **spec: Any) -> OffloadPolicy:
    allowed = {"namespaceSelector": {}, "providers": ["modal", "runpod"], **spec}
    return msgspec.convert({"metadata": {"name": name}, "spec": allowed}, OffloadPolicy)


def cloud(node: str, **fields: Any) -> Cloud:
    settings = NODES[node]
    vendor = {"modal": MODAL, "runpod": RUNPOD}[settings.provider]
    manifest = {
        "metadata": {"name": node, "labels": {"type": "virtual-kubelet", **settings.labels}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    known = {"object": msgspec.convert(manifest, NodeObject), "offers": OfferList(vendor.offers, 0.0)}
    return Cloud(node=node, settings=settings, **{**known, **fields})


CLOUDS = tuple(cloud(node) for node in NODES)


def observation(seen: Pod, **fields: Any) -> Observation:
    known = {"stage": "overflow", "now": NOW, "config": PlacementConfig(), "clouds": CLOUDS, "policies": (policy(),)}
    return Observation(pod=seen, **{**known, **fields})
