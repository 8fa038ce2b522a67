"""The objects of the benchmark, as large as real ones: a pod of 6.5 KB and a TrainingJob of 2.7 KB.

A third of a real object is `managedFields`, which nobody reads and every client has to get past. Pure.
"""

from __future__ import annotations

import json
import uuid
from functools import cache
from typing import Any

from skysail.kinds.training.api.modal_job import MODAL_JOB
from skysail.kinds.training.api.training_job import TRAINING_JOB
from skysail.kube.api.resources import POD

Manifest = dict[str, Any]

NAMESPACE = "ml"
# The annotation that tells when the server sent an event, on the clock that all processes of a machine share.
SENT = "bench.skysail.dev/sent"

_CREATED = "2026-11-01T10:00:00Z"
_IMAGE = "images.example.com/ml/trainer:2.4.1-cuda12"
# By which field a list's entries are told apart, as the API server does it.
_LIST_KEYS = ("containerPort", "mountPath", "name", "type", "ip", "uid")
# Not followed further, so that the tree is as large as it is in a real pod.
_ATOMIC = {"containerStatuses", "tolerations", "volumes", "volumeMounts"}


def modal_job(number: int, namespace: str) -> Manifest:
    """Of a kind whose controller writes one condition and makes nothing."""
    labels = {"team": f"team-{number % 20}", "project": f"project-{number % 100}"}
    return {
        "apiVersion": MODAL_JOB.resource.api_version,
        "kind": MODAL_JOB.resource.kind,
        "metadata": {"name": _job_name(number), "namespace": namespace, "labels": labels},
        "spec": {"image": _IMAGE, "command": ["torchrun", *_arguments()], "gpu": "H100:8"},
    }


def training_job(number: int, namespace: str = NAMESPACE) -> Manifest:
    """A TrainingJob as a person writes it."""
    return {
        "apiVersion": TRAINING_JOB.resource.api_version,
        "kind": TRAINING_JOB.resource.kind,
        "metadata": {
            "name": _job_name(number),
            "namespace": namespace,
            "labels": {"team": f"team-{number % 20}", "project": f"project-{number % 100}"},
        },
        "spec": {
            "framework": "pytorch",
            "image": _IMAGE,
            "command": ["torchrun"],
            "args": _arguments(),
            "workers": 2,
            "gpuPerWorker": 8,
            "resources": _resources(),
            "checkpointDir": "/checkpoints",
            "checkpointInterval": 5,
            "hyperparameters": {"learningRate": "0.001", "batchSize": 64, "epochs": 90, "warmup": True},
            "runPolicy": {"backoffLimit": 3, "cleanPodPolicy": "Running", "ttlSecondsAfterFinished": 3600},
            "elastic": {"min": 1, "max": 16},
            "podTemplate": {
                "metadata": {"labels": {"cost-center": "research"}},
                "spec": {"containers": [_sidecar()], "volumes": _volumes(), "tolerations": _tolerations()},
            },
        },
    }


def stored_job(number: int) -> Manifest:
    """The same job as the API server gives it back, before anybody worked on it."""
    job = training_job(number)
    managed = [_manager("kubectl-create", {"f:spec": _job_fields()}, job["apiVersion"])]
    job["metadata"] |= {"uid": _uid("job", number), "generation": 1, **_stored(managed)}
    return {**job, "status": {}}


def stored_pod(number: int, jobs: int) -> Manifest:
    """A running pod. The pods are dealt out to the jobs in turn."""
    job = number % jobs
    index = number // jobs
    name = f"{_job_name(job)}-worker-{index}"
    spec, status = _pod_spec(name, number, index), _pod_status(number)
    return {
        "apiVersion": POD.api_version,
        "kind": POD.kind,
        "metadata": {**_pod_metadata(name, job, index), "uid": _uid("pod", number), **_stored(_pod_managers())},
        "spec": spec,
        "status": status,
    }


def _job_name(number: int) -> str:
    return f"train-{number:05d}"


def _uid(kind: str, number: int) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{kind}/{number}"))


def _stored(managers: list[Manifest]) -> Manifest:
    return {"creationTimestamp": _CREATED, "managedFields": managers}


def _pod_metadata(name: str, job: int, index: int) -> Manifest:
    owner = {
        "apiVersion": TRAINING_JOB.resource.api_version,
        "kind": TRAINING_JOB.resource.kind,
        "name": _job_name(job),
        "uid": _uid("job", job),
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "name": name,
        "namespace": NAMESPACE,
        "generation": 1,
        "generateName": name[:-1],
        "labels": {
            "app.kubernetes.io/managed-by": "skysail",
            "batch.kubernetes.io/job-completion-index": str(index),
            "batch.kubernetes.io/controller-uid": _uid("job", job),
            "batch.kubernetes.io/job-name": _job_name(job),
            "controller-uid": _uid("job", job),
            "job-name": _job_name(job),
        },
        "annotations": {
            "batch.kubernetes.io/job-completion-index": str(index),
            "cni.projectcalico.org/podIP": f"10.2.{job >> 8 & 255}.{job & 255}/32",
        },
        "ownerReferences": [owner],
        "finalizers": ["batch.kubernetes.io/job-tracking"],
    }


def _pod_spec(name: str, number: int, index: int) -> Manifest:
    env = {
        "RANK": str(index),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": f"{name}.workers",
        "MASTER_PORT": "29500",
        "NCCL_DEBUG": "WARN",
    }
    trainer = {
        "name": "trainer",
        "image": _IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["torchrun"],
        "args": _arguments(),
        "env": [{"name": key, "value": value} for key, value in env.items()],
        "ports": [{"containerPort": 29500, "protocol": "TCP"}],
        "resources": _resources(),
        "volumeMounts": [
            {"name": "data", "mountPath": "/data"},
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "kube-api-access", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True},
        ],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
    }
    return {
        "containers": [trainer],
        "volumes": [*_volumes(), _token_volume()],
        "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "serviceAccount": "default",
        "nodeName": f"gpu-{number % 500:03d}",
        "hostname": name,
        "subdomain": "workers",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "tolerations": _tolerations(),
        "priority": 0,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
    }


def _pod_status(number: int) -> Manifest:
    address = f"10.2.{number >> 8 & 255}.{number & 255}"
    conditions = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    return {
        "phase": "Running",
        "qosClass": "Guaranteed",
        "hostIP": f"10.1.0.{number % 250}",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": _CREATED,
        "conditions": [
            {"type": type_, "status": "True", "lastProbeTime": None, "lastTransitionTime": _CREATED}
            for type_ in conditions
        ],
        "containerStatuses": [
            {
                "name": "trainer",
                "state": {"running": {"startedAt": _CREATED}},
                "lastState": {},
                "ready": True,
                "started": True,
                "restartCount": 0,
                "image": _IMAGE,
                "imageID": f"images.example.com/ml/trainer@sha256:{'ab' * 32}",
                "containerID": f"containerd://{'cd' * 32}",
            }
        ],
    }


def _arguments() -> list[str]:
    return ["--nnodes=2", "--nproc-per-node=8", "--rdzv-backend=c10d", "train.py", "--config", "/etc/train.yaml"]


def _resources() -> Manifest:
    amounts = {"cpu": "16", "memory": "128Gi", "nvidia.com/gpu": "8"}
    return {"limits": amounts, "requests": amounts}


def _sidecar() -> Manifest:
    env = [{"name": name, "value": "1"} for name in ("PROFILE", "UPLOAD", "VERBOSE", "NCCL_ASYNC_ERROR_HANDLING")]
    return {
        "name": "profiler",
        "image": "images.example.com/ml/profiler:1.9.0",
        "args": ["--output=/checkpoints/profile", "--interval=60s"],
        "env": env,
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }


def _volumes() -> list[Manifest]:
    return [
        {"name": "data", "persistentVolumeClaim": {"claimName": "datasets"}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "32Gi"}},
    ]


def _token_volume() -> Manifest:
    sources = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]
    return {"name": "kube-api-access", "projected": {"sources": sources, "defaultMode": 420}}


def _tolerations() -> list[Manifest]:
    away = [
        {"key": f"node.kubernetes.io/{why}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        for why in ("not-ready", "unreachable")
    ]
    return [*away, {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]


@cache
def _job_fields() -> Manifest:
    fields: Manifest = _fields(training_job(0)["spec"])
    return fields


@cache
def _pod_managers() -> list[Manifest]:
    """Who wrote which field of a pod. Nearly the same for all of them, so made once."""
    metadata = _pod_metadata("train-00000-worker-0", 0, 0)
    written = {key: metadata[key] for key in ("annotations", "finalizers", "labels", "ownerReferences")}
    made = {"f:metadata": _fields(written), "f:spec": _fields(_pod_spec("train-00000-worker-0", 0, 0))}
    return [
        _manager("kube-controller-manager", made, POD.api_version),
        {**_manager("kubelet", {"f:status": _fields(_pod_status(0))}, POD.api_version), "subresource": "status"},
    ]


def _manager(name: str, fields: Manifest, api_version: str) -> Manifest:
    return {
        "manager": name,
        "operation": "Update",
        "apiVersion": api_version,
        "time": _CREATED,
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }


def _fields(value: Any) -> Manifest:
    """The tree of a value's fields in the API server's notation."""
    if isinstance(value, dict):
        return {f"f:{name}": {} if name in _ATOMIC else _fields(part) for name, part in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return {".": {}, **{_entry(part): {".": {}, **_fields(part)} for part in value}}
    return {}


def _entry(part: Manifest) -> str:
    key = next(key for key in _LIST_KEYS if key in part)
    return "k:" + json.dumps({key: part[key]}, separators=(",", ":"))
