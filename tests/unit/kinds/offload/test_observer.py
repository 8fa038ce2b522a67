"""The observer counts managed Jobs that wait: each once, and only by pods that the scheduler refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from skysail.claims.limits.offload_policy import OFFLOAD_POLICY, OffloadPolicy
from skysail.kinds.offload.caches import Caches
from skysail.kinds.offload.config import OffloadConfig
from skysail.kinds.offload.objects import Job
from skysail.kinds.offload.observer import PlacementObserver
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import NAMESPACE
from skysail.kube.cache.cache import Cache
from tests.unit.kinds.offload.samples import NODES, NOW, pod, unschedulable

MANAGED = {"runpod.io/managed": "true"}


class Scene:
    def __init__(self) -> None:
        self.caches = Caches.create(Cache(OFFLOAD_POLICY.resource, OffloadPolicy), Cache(NAMESPACE, Object))
        self.pods = 0

    def add_job(self, name: str, namespace: str = "team", **metadata: Any) -> None:
        row = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": "7", **metadata}
        self.caches.jobs.put(msgspec.convert({"metadata": row}, Job))

    def add_pod(self, job: str, *, namespace: str = "team", kind: str = "Job", status: Any = None) -> None:
        self.pods += 1
        owner = {"apiVersion": "batch/v1", "kind": kind, "name": job, "uid": f"uid-{job}", "controller": True}
        status = unschedulable() if status is None else status
        name = f"pod-{self.pods}"
        self.caches.pods.put(pod(status=status, name=name, uid=name, namespace=namespace, ownerReferences=[owner]))

    def waiting_jobs(self) -> int:
        config: Any = OffloadConfig(nodes=NODES)
        none: Any = None
        observer = PlacementObserver(none, self.caches, config, none, now=lambda: NOW, clock=lambda: 0.0)
        return observer._waiting_jobs()


@pytest.mark.parametrize(
    ("metadata", "want"),
    [
        ({"annotations": MANAGED}, 1),
        ({"labels": MANAGED}, 1),
        ({"annotations": MANAGED, "labels": MANAGED}, 1),
        ({"annotations": {"runpod.io/managed": "True"}}, 1),
        ({"annotations": {"runpod.io/managed": "false"}, "labels": MANAGED}, 0),
        ({"annotations": {"runpod.io/managed": "yes"}, "labels": {"other": "true"}}, 0),
        ({}, 0),
    ],
)
def test_waiting_jobs_count_a_job_that_is_managed_by_annotation_or_label(metadata, want):
    scene = Scene()
    scene.add_job("train", **metadata)
    scene.add_pod("train")
    assert scene.waiting_jobs() == want


def test_waiting_jobs_with_several_pods_each_count_once():
    scene = Scene()
    for name in ("one", "two"):
        scene.add_job(name, annotations=MANAGED)
        scene.add_pod(name)
        scene.add_pod(name)
    assert scene.waiting_jobs() == 2


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"conditions": [{"type": "PodScheduled", "status": "True"}]},
        {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]},
    ],
    ids=["not seen by the scheduler", "has a node", "gated"],
)
def test_waiting_jobs_with_a_pod_that_the_scheduler_did_not_refuse_do_not_count(status):
    scene = Scene()
    scene.add_job("train", annotations=MANAGED)
    scene.add_pod("train", status=status)
    assert scene.waiting_jobs() == 0


def test_waiting_jobs_without_a_pod_or_of_another_namespace_do_not_count():
    scene = Scene()
    scene.add_job("train", annotations=MANAGED)
    scene.add_pod("train", namespace="other")
    scene.add_pod("unknown")
    assert scene.waiting_jobs() == 0


def test_caches_of_pods_leave_out_those_that_finished_or_have_a_node():
    assert Scene().caches.pods.selector == {"fieldSelector": "spec.nodeName=,status.phase=Pending"}
