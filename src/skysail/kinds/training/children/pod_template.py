"""Pod template of one role of a TrainingJob. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from skysail.base.names import Annotation
from skysail.claims.requirements.annotations import inherit
from skysail.claims.requirements.types import OwnerLink
from skysail.core.actions import Manifest
from skysail.kinds.training.api.training_job import LatestCheckpoint, TrainingJob, TrainingJobSpec
from skysail.kinds.training.children import naming, progress_endpoint
from skysail.kinds.training.children.frameworks import FRAMEWORKS
from skysail.kinds.training.children.frameworks.base import INDEX_VARIABLE, WorldInfo
from skysail.kinds.training.children.pod_template_merge import merge
from skysail.kinds.training.children.progress_endpoint import ProgressEndpoint
from skysail.kinds.training.children.replica_groups import GPU, ReplicaGroup
from skysail.kinds.training.children.volumes import checkpoint_directory, has_cloud_volume, volumes
from skysail.kinds.training.objects import INDEX_LABEL
from skysail.kube.api.env_escape import literal
from skysail.kube.api.fields import PodTemplate

# Name of the training container. A podTemplate changes the container under this name.
CONTAINER = "trainer"


def build(
    job: TrainingJob,
    world: WorldInfo,
    replica_group: ReplicaGroup,
    *,
    resume: LatestCheckpoint | None,
    reports: ProgressEndpoint | None,
    labels: dict[str, str],
) -> Manifest:
    """Return the template with the user's merged over it. Fields by which pods find each other cannot be overridden."""
    desired = job.spec.pod_template or PodTemplate()
    spec = merge(_pod(job, world, replica_group, resume, reports), desired.spec)
    spec.pop("hostname", None)
    spec.pop("subdomain", None)
    spec["restartPolicy"] = "Never"
    if not world.is_single_pod:
        spec["subdomain"] = naming.service(world.name)
    metadata: Manifest = {"labels": {**desired.metadata.labels, **labels}}
    ours = {**(progress_endpoint.ca_annotation(reports) if reports else {}), **_at_a_cloud(job, resume)}
    annotations = {**_inherited(job, desired), **desired.metadata.annotations, **ours}
    if annotations:
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": spec}


def _inherited(job: TrainingJob, desired: PodTemplate) -> dict[str, str]:
    """Return the annotations of the job that ask for a cloud, as far as its template says nothing else."""
    own = OwnerLink(kind="Pod", name="", annotations=desired.metadata.annotations, labels=desired.metadata.labels)
    metadata = job.metadata
    asked = OwnerLink(
        kind="TrainingJob", name=metadata.name, annotations=metadata.annotations or {}, labels=metadata.labels or {}
    )
    return inherit([own, asked])


def _at_a_cloud(job: TrainingJob, resume: LatestCheckpoint | None) -> dict[str, str]:
    """Return the annotations by which the node of a cloud finds the volume and the checkpoint of the job."""
    if not has_cloud_volume(job):
        return {}
    found = {Annotation.CHECKPOINT_VOLUME.value: job.metadata.uid}
    if resume is not None and resume.provider:
        known = {"provider": resume.provider, "path": resume.path, "step": resume.step}
        found[Annotation.CLOUD_CHECKPOINT.value] = msgspec.json.encode(known).decode()
    return found


def env_vars(world: WorldInfo, replica_group: ReplicaGroup, resume: LatestCheckpoint | None) -> list[Manifest]:
    """Return the environment of a container.

    The index comes first, because variables can refer only to earlier ones.
    """
    ours = {
        "PYTHONUNBUFFERED": "1",
        "TRAINING_ATTEMPT": str(world.number),
        **FRAMEWORKS[world.spec.framework].environment(world, replica_group),
        **_checkpoints(world.spec, resume),
        **dict(_hyperparameters(world.spec)),
    }
    return [
        _own(INDEX_VARIABLE, f"metadata.labels['{INDEX_LABEL}']"),
        _own("POD_NAME", "metadata.name"),
        _own("POD_IP", "status.podIP"),
        *_plain(ours),
    ]


def _pod(
    job: TrainingJob,
    world: WorldInfo,
    replica_group: ReplicaGroup,
    resume: LatestCheckpoint | None,
    reports: ProgressEndpoint | None,
) -> Manifest:
    spec, found, env = job.spec, volumes(job), env_vars(world, replica_group, resume)
    if reports is not None:
        found = (*found, progress_endpoint.volume(job))
        env += _plain(progress_endpoint.variables(job, reports))
    container: Manifest = {
        "name": CONTAINER,
        "image": replica_group.image,
        "command": list(replica_group.command),
        "args": list(replica_group.args),
        "env": env,
        "resources": _resources(replica_group),
        "volumeMounts": [volume.mount for volume in found],
        # Puts the end of the log into the pod status, which outlives the container.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    pod: Manifest = {
        "containers": [container],
        "volumes": [volume.source for volume in found],
        # A namespace may have hundreds of Services, and each would add seven variables.
        "enableServiceLinks": False,
    }
    if spec.checkpoint is not None and spec.checkpoint.grace_period_seconds is not None:
        pod["terminationGracePeriodSeconds"] = spec.checkpoint.grace_period_seconds
    if spec.scheduling is not None and spec.scheduling.priority_class:
        pod["priorityClassName"] = spec.scheduling.priority_class
    return pod


def _resources(replica_group: ReplicaGroup) -> Manifest:
    """Return the resources with GPUs as limit and request: the API server rejects extended resources that differ."""
    resources: Manifest = msgspec.to_builtins(replica_group.resources)
    if replica_group.gpus:
        for kind in ("limits", "requests"):
            resources[kind] = {**resources.get(kind, {}), GPU: str(replica_group.gpus)}
    return resources


def _checkpoints(spec: TrainingJobSpec, resume: LatestCheckpoint | None) -> dict[str, str]:
    """Return the variables for saving checkpoints and for resuming from one."""
    found: dict[str, str] = {}
    if directory := checkpoint_directory(spec):
        found = {"CHECKPOINT_DIR": literal(directory), "CHECKPOINT_INTERVAL": str(spec.checkpoint_interval)}
    # The node of a cloud sets these for a checkpoint that is there.
    if resume is not None and not resume.provider:
        found["RESUME_FROM"] = literal(resume.path)
        if resume.step is not None:
            found["RESUME_STEP"] = str(resume.step)
    return found


def _hyperparameters(spec: TrainingJobSpec) -> Iterator[tuple[str, str]]:
    """Yield one variable per hyperparameter.

    If two keys have the same variable, the first by name wins; the file has both.
    """
    taken = set()
    for key, value in sorted(spec.hyperparameters.items()):
        name = naming.variable(key)
        if name not in taken:
            taken.add(name)
            yield name, literal(_spelled(value))


def _spelled(value: Any) -> str:
    """Return strings unchanged, numbers and booleans as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value, order="sorted").decode()


def _plain(values: Mapping[str, str]) -> list[Manifest]:
    return [{"name": name, "value": value} for name, value in values.items()]


def _own(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
