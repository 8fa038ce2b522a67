"""Volumes of the pods: data, checkpoints, hyperparameters. Pure."""

from __future__ import annotations

import posixpath
from datetime import datetime

import msgspec

from skysail.core.actions import Manifest
from skysail.kinds.training.api.training_job import Checkpoint, LatestCheckpoint, TrainingJob, TrainingJobSpec
from skysail.kinds.training.children import naming
from skysail.kinds.training.children.replica_groups import max_pods
from skysail.kube.api.fields import PersistentVolumeClaimVolumeSource
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import CONFIG_MAP, PERSISTENT_VOLUME_CLAIM

_DATA = "/data"
_CHECKPOINTS = "/checkpoints"
_FILE = "hyperparameters.json"
_FILE_PATH = f"/etc/skysail/{_FILE}"
_SIZE = "10Gi"


class Volume(msgspec.Struct, frozen=True):
    """Volume of a pod and its mount in the container."""

    source: Manifest
    mount: Manifest


def volumes(job: TrainingJob) -> tuple[Volume, ...]:
    """Return the volumes of each pod. All roles have the same."""
    spec, found = job.spec, []
    if spec.data_volume is not None:
        found.append(_claimed("data", spec.data_volume, _DATA))
    if directory := checkpoint_directory(spec):
        claim = PersistentVolumeClaimVolumeSource(checkpoint_claim_name(job))
        found.append(_claimed("checkpoints", claim, directory))
    if spec.hyperparameters:
        found.append(_file(naming.hyperparameters(job.metadata.name)))
    return tuple(found)


def checkpoint_directory(spec: TrainingJobSpec) -> str:
    """Return the mount path for checkpoints, or an empty string if the spec has no volume for them."""
    if spec.checkpoint_dir:
        return "/" + spec.checkpoint_dir.lstrip("/")
    desired = _checkpoint(spec)
    is_wanted = desired.claim_name or desired.size or desired.storage_class_name or desired.access_mode
    return _CHECKPOINTS if is_wanted else ""


def checkpoint_claim_name(job: TrainingJob) -> str:
    """Return the PVC for checkpoints. The status names the created one if its name is not the usual one."""
    named, created = _checkpoint(job.spec).claim_name, job.status.checkpoint_volume
    return named or (created.claim_name if created is not None else naming.checkpoints(job.metadata.name))


def has_cloud_volume(job: TrainingJob) -> bool:
    """Return whether checkpoints are in a volume of the cloud where the job runs. A PVC of the user stays here."""
    return bool(checkpoint_directory(job.spec)) and not _checkpoint(job.spec).claim_name


def is_reachable(job: TrainingJob, checkpoint: LatestCheckpoint) -> bool:
    """Return whether new pods of the job can read the checkpoint: path and PVC may have changed."""
    if checkpoint.provider:
        is_there = has_cloud_volume(job)
    else:
        is_there = checkpoint.claim_name in {None, checkpoint_claim_name(job)}
    return is_there and is_within(checkpoint.path, checkpoint_directory(job.spec))


def is_lost(claim: Object | None, checkpoint: LatestCheckpoint) -> bool:
    """Return whether the checkpoint was deleted with its PVC: the PVC is missing, terminating, or newer."""
    if claim is None or claim.metadata.is_deleting:
        return True
    made, saved = claim.metadata.creation_timestamp, checkpoint.save_time
    return bool(made and saved) and datetime.fromisoformat(saved or "") < datetime.fromisoformat(made or "")


def is_within(path: str, directory: str) -> bool:
    """Return whether the path is the directory or below it. Paths with `..` are rejected."""
    if not directory:
        return False
    directory = posixpath.normpath(directory)
    plain = posixpath.normpath(path)
    is_below = plain == directory or plain.startswith(directory.rstrip("/") + "/")
    return path.isprintable() and path.startswith("/") and ".." not in path.split("/") and is_below


def checkpoint_pvc(job: TrainingJob) -> Manifest | None:
    """Return the PVC that is created for the job, or None if the user names one. Its spec is immutable."""
    desired = _checkpoint(job.spec)
    if not checkpoint_directory(job.spec) or desired.claim_name:
        return None
    spec: Manifest = {
        "accessModes": [desired.access_mode or ("ReadWriteMany" if max_pods(job.spec) > 1 else "ReadWriteOnce")],
        "resources": {"requests": {"storage": desired.size or _SIZE}},
    }
    if desired.storage_class_name:
        spec["storageClassName"] = desired.storage_class_name
    return {
        "apiVersion": PERSISTENT_VOLUME_CLAIM.api_version,
        "kind": PERSISTENT_VOLUME_CLAIM.kind,
        "metadata": {"name": checkpoint_claim_name(job), "namespace": job.metadata.namespace},
        "spec": spec,
    }


def hyperparameters(job: TrainingJob) -> Manifest | None:
    """Return the ConfigMap with all hyperparameters as one JSON file."""
    if not job.spec.hyperparameters:
        return None
    text = msgspec.json.encode(job.spec.hyperparameters, order="sorted").decode()
    return {
        "apiVersion": CONFIG_MAP.api_version,
        "kind": CONFIG_MAP.kind,
        "metadata": {"name": naming.hyperparameters(job.metadata.name), "namespace": job.metadata.namespace},
        "data": {_FILE: text},
    }


def _checkpoint(spec: TrainingJobSpec) -> Checkpoint:
    return spec.checkpoint or Checkpoint()


def _claimed(name: str, claim: PersistentVolumeClaimVolumeSource, path: str) -> Volume:
    mount: Manifest = {"name": name, "mountPath": path}
    if claim.read_only:
        mount["readOnly"] = True
    return Volume({"name": name, "persistentVolumeClaim": msgspec.to_builtins(claim)}, mount)


def _file(config_map: str) -> Volume:
    """Mount the file by subPath, so that a running pod keeps its version when hyperparameters change."""
    name = "hyperparameters"
    mount = {"name": name, "mountPath": _FILE_PATH, "subPath": _FILE, "readOnly": True}
    return Volume({"name": name, "configMap": {"name": config_map}}, mount)
