"""The jobs of the benchmark, two pods each: as a TrainingJob, as a PyTorchJob, and as the Job and the Service alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from bench.peers.kubeflow import PYTORCH_JOB
from skysail.base.names import Label
from skysail.kinds.training.api.training_job import TRAINING_JOB, TrainingJob
from skysail.kinds.training.children.manifests import build_children
from skysail.kinds.training.children.progress_endpoint import ProgressEndpoint
from skysail.kube.api.objects import Key, Object
from skysail.kube.api.resources import JOB, Resource

Manifest = dict[str, Any]

PODS = 2
RUNS, HELD = "runs", "is held"
_IMAGE = "trainer:1"
_COMMAND = ["torchrun", "train.py"]
_RESOURCES = {"requests": {"cpu": "1", "memory": "1Gi"}}
# As long as a real one, because it is in every pod.
_REPORTING = ProgressEndpoint("https://skysail-progress.skysail-system.svc:8082", "x" * 620)


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """How one and the same job is asked for, and what its status says: all pods run, it is held, or neither.

    The last manifest is the one with this status; each of its `pods` pods has its name in `label`.
    """

    resource: Resource
    type: type[Any]
    label: str
    manifests: Callable[[Key], list[tuple[Resource, Manifest]]]
    held: Callable[[Key], list[tuple[Resource, Manifest]]] = lambda _: []
    says: Callable[[Any], str]
    pods: int = PODS


class _JobStatus(msgspec.Struct, frozen=True):
    ready: int = 0


class _Job(Object, frozen=True):
    status: _JobStatus = _JobStatus()


class _Replicas(msgspec.Struct, frozen=True):
    active: int = 0


class _Condition(msgspec.Struct, frozen=True):
    type: str
    status: str


class _PyTorchStatus(msgspec.Struct, frozen=True, rename="camel"):
    replica_statuses: dict[str, _Replicas] | None = None
    conditions: tuple[_Condition, ...] | None = ()


class _PyTorchJob(Object, frozen=True):
    status: _PyTorchStatus = _PyTorchStatus()

    def holds(self, condition: str) -> bool:
        return any((row.type, row.status) == (condition, "True") for row in self.status.conditions or ())


def _training_job(key: Key, **spec: Any) -> Manifest:
    wanted = {
        "framework": "pytorch",
        "image": _IMAGE,
        "command": _COMMAND,
        "workers": PODS,
        "resources": _RESOURCES,
        **spec,
    }
    return _manifest(TRAINING_JOB.resource, key, wanted)


def _pytorch_job(key: Key, **policy: Any) -> Manifest:
    container = {"name": "pytorch", "image": _IMAGE, "command": _COMMAND, "resources": _RESOURCES}
    replica = {"replicas": 1, "restartPolicy": "OnFailure", "template": {"spec": {"containers": [container]}}}
    wanted = {"runPolicy": policy, "pytorchReplicaSpecs": {"Master": replica, "Worker": replica}}
    return _manifest(PYTORCH_JOB, key, wanted)


def _children(key: Key) -> list[tuple[Resource, Manifest]]:
    """What Skysail would make of the TrainingJob, without it."""
    wanted = _training_job(key)
    wanted["metadata"]["uid"] = f"no-uid-{key.name}"
    made = build_children(msgspec.convert(wanted, TrainingJob), 0, None, _REPORTING)
    return [*made.shared, *made.jobs]


def _manifest(resource: Resource, key: Key, spec: Manifest) -> Manifest:
    metadata = {"name": key.name, "namespace": key.namespace}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": spec}


def _training_says(job: TrainingJob) -> str:
    phases = [worker.phase for worker in job.status.worker_statuses]
    if job.status.phase == "Running":
        return RUNS if phases == ["Running"] * PODS else ""
    return HELD if job.status.phase == "Suspended" else ""


def _pytorch_says(job: _PyTorchJob) -> str:
    replicas = (job.status.replica_statuses or {}).values()
    if job.holds("Running"):
        return RUNS if sum(each.active for each in replicas) == PODS else ""
    return HELD if job.holds("Suspended") else ""


BARE = Shape(
    resource=JOB,
    type=_Job,
    label="batch.kubernetes.io/job-name",
    manifests=_children,
    says=lambda job: RUNS if job.status.ready == PODS else "",
)
TRAINING = Shape(
    resource=TRAINING_JOB.resource,
    type=TrainingJob,
    label=Label.TRAINING_JOB,
    manifests=lambda key: [(TRAINING_JOB.resource, _training_job(key))],
    held=lambda key: [(TRAINING_JOB.resource, _training_job(key, suspend=True))],
    says=_training_says,
)
PYTORCH = Shape(
    resource=PYTORCH_JOB,
    type=_PyTorchJob,
    label="training.kubeflow.org/job-name",
    manifests=lambda key: [(PYTORCH_JOB, _pytorch_job(key))],
    held=lambda key: [(PYTORCH_JOB, _pytorch_job(key, suspend=True))],
    says=_pytorch_says,
)
