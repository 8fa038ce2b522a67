"""Pod template of one role of a TrainingJob. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from skysail.core.actions import Manifest
from skysail.kinds.training.api.training_job import NewestCheckpoint, TrainingJob, TrainingJobSpec
from skysail.kinds.training.children import naming, progress_endpoint
from skysail.kinds.training.children.frameworks import FRAMEWORKS
from skysail.kinds.training.children.frameworks.base import INDEX_VARIABLE, World
from skysail.kinds.training.children.pod_template_merge import laid_over
from skysail.kinds.training.children.progress_endpoint import Reporting
from skysail.kinds.training.children.replica_groups import GPU, Group
from skysail.kinds.training.children.volumes import checkpoint_directory, volumes
from skysail.kinds.training.objects import INDEX_LABEL
from skysail.kube.api.fields import PodTemplate

# Name of the training container. A podTemplate changes the container under this name.
CONTAINER = "trainer"


def template(
    job: TrainingJob,
    world: World,
    group: Group,
    *,
    resume: NewestCheckpoint | None,
    reports: Reporting | None,
    labels: dict[str, str],
) -> Manifest:
    """Return the template with the user's merged over it. Fields by which pods find each other cannot be overridden."""
    wanted = job.spec.pod_template or PodTemplate()
    spec = laid_over(_pod(job, world, group, resume, reports), wanted.spec)
    spec.pop("hostname", None)
    spec.pop("subdomain", None)
    spec["restartPolicy"] = "Never"
    if not world.is_alone:
        spec["subdomain"] = naming.service(world.name)
    metadata: Manifest = {"labels": {**wanted.metadata.labels, **labels}}
    annotations = {**wanted.metadata.annotations, **(progress_endpoint.announced(reports) if reports else {})}
    if annotations:
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": spec}


def variables(world: World, group: Group, resume: NewestCheckpoint | None) -> list[Manifest]:
    """Return the environment of a container.

    The index comes first, because variables can refer only to earlier ones.
    """
    ours = {
        "PYTHONUNBUFFERED": "1",
        "TRAINING_ATTEMPT": str(world.number),
        **FRAMEWORKS[world.spec.framework].environment(world, group),
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
    job: TrainingJob, world: World, group: Group, resume: NewestCheckpoint | None, reports: Reporting | None
) -> Manifest:
    spec, found, env = job.spec, volumes(job), variables(world, group, resume)
    if reports is not None:
        found = (*found, progress_endpoint.volume(job))
        env += _plain(progress_endpoint.variables(job, reports))
    container: Manifest = {
        "name": CONTAINER,
        "image": group.image,
        "command": list(group.command),
        "args": list(group.args),
        "env": env,
        "resources": _resources(group),
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


def _resources(group: Group) -> Manifest:
    """Return the resources with GPUs as limit and request: the API server rejects extended resources that differ."""
    resources: Manifest = msgspec.to_builtins(group.resources)
    if group.gpus:
        for kind in ("limits", "requests"):
            resources[kind] = {**resources.get(kind, {}), GPU: str(group.gpus)}
    return resources


def _checkpoints(spec: TrainingJobSpec, resume: NewestCheckpoint | None) -> dict[str, str]:
    """Return the variables for saving checkpoints and for resuming from one."""
    found: dict[str, str] = {}
    if directory := checkpoint_directory(spec):
        found = {"CHECKPOINT_DIR": _literal(directory), "CHECKPOINT_INTERVAL": str(spec.checkpoint_interval)}
    if resume is not None:
        found["RESUME_FROM"] = _literal(resume.path)
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
            yield name, _literal(_spelled(value))


def _spelled(value: Any) -> str:
    """Return strings unchanged, numbers and booleans as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value, order="sorted").decode()


def _literal(text: str) -> str:
    """Escape `$`, so that `$(NAME)` in the value is not expanded."""
    return text.replace("$", "$$")


def _plain(values: Mapping[str, str]) -> list[Manifest]:
    return [{"name": name, "value": value} for name, value in values.items()]


def _own(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
