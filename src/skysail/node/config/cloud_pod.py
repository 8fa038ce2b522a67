"""A pod as a cloud runs it: without what only the cluster has, and with volumes of the cloud for checkpoints. Pure.

No token and no URL of the cluster leaves it, so a TrainingJob reports its progress by printed lines. Its checkpoint
volume becomes a volume of the cloud, and it resumes only from a checkpoint that is there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from skysail.base import untrusted_json
from skysail.base.names import Annotation
from skysail.base.untrusted_json import InvalidJson
from skysail.claims.requirements.machine_size import INJECTED_CONTAINERS
from skysail.cloud.checkpoint_volumes import volume_id
from skysail.node.config import container_overrides
from skysail.node.config.container_config import without_service_account, without_volumes
from skysail.node.pod_types import Container, EnvVar, Pod, Volume

# Volume and variables by which a pod reports its progress to the server in the cluster.
_TOKEN_VOLUME = "kubeflow-trainer-token"  # noqa: S105 (a name)
_SERVER_VARIABLES = "KUBEFLOW_TRAINER_SERVER_"
_CHECKPOINTS = "checkpoints"
_RESUME_FROM, _RESUME_STEP = "RESUME_FROM", "RESUME_STEP"
_KATIB_COLLECTOR = "metrics-logger-and-collector"
# The UID becomes a part of names and of paths at clouds.
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")


class CloudCheckpoint(msgspec.Struct, frozen=True):
    """The newest checkpoint of a TrainingJob, if it is at a cloud."""

    provider: str
    path: str
    step: int | None = None


def effective(pod: Pod, provider: str) -> Pod:
    """Return the pod as this cloud runs it, in container mode if it asks for that."""
    found = _without_injected(without_service_account(pod))
    return container_overrides.apply(_as_training(found, provider))


def ignored(pod: Pod) -> Iterator[str]:
    """Yield sentences about injected containers that do not run at a cloud."""
    names = [container.name for container in _all(pod) if container.name in INJECTED_CONTAINERS]
    if names and len(names) < len(_all(pod)):
        yield f"spec.containers ({', '.join(names)}): injected into the pod, and not run at a cloud."


def rejected(pod: Pod) -> Iterator[str]:
    """Yield sentences about containers that the pod needs and that cannot run at a cloud."""
    if any(container.name == _KATIB_COLLECTOR for container in _all(pod)):
        yield (
            f"spec.containers ({_KATIB_COLLECTOR}): Katib's collector reads files or logs beside the trial, which a "
            "cloud does not allow. Set metricsCollectorSpec.collector.kind to Push in the Experiment, and report "
            "metrics by katib.report_metrics()."
        )


def _all(pod: Pod) -> tuple[Container, ...]:
    return (*pod.spec.containers, *pod.spec.init_containers)


def _without_injected(pod: Pod) -> Pod:
    kept = tuple(container for container in pod.spec.containers if container.name not in INJECTED_CONTAINERS)
    if not kept:
        return pod
    inits = tuple(container for container in pod.spec.init_containers if container.name not in INJECTED_CONTAINERS)
    return replace(pod, spec=replace(pod.spec, containers=kept, init_containers=inits))


def _as_training(pod: Pod, provider: str) -> Pod:
    """Return the pod of a TrainingJob with the cloud's volume and checkpoint. Other pods are returned unchanged."""
    annotations = pod.metadata.annotations or {}
    uid, pod = _uid(annotations.get(Annotation.CHECKPOINT_VOLUME, "")), without_volumes(pod, {_TOKEN_VOLUME})
    checkpoint = _checkpoint(annotations.get(Annotation.CLOUD_CHECKPOINT, ""))
    is_here = checkpoint is not None and checkpoint.provider == provider
    containers = tuple(
        replace(container, env=_env(container.env, checkpoint if is_here else None, has_volume=bool(uid)))
        for container in pod.spec.containers
    )
    volumes = tuple(_cloud_volume(volume, pod, uid) if uid else volume for volume in pod.spec.volumes)
    return replace(pod, spec=replace(pod.spec, containers=containers, volumes=volumes))


def _cloud_volume(volume: Volume, pod: Pod, uid: str) -> Volume:
    if volume.name != _CHECKPOINTS or (volume.persistent_volume_claim is None and volume.empty_dir is None):
        return volume
    return Volume(name=volume.name, cloud_volume=volume_id(pod.metadata.namespace, uid))


def _env(env: tuple[EnvVar, ...], checkpoint: CloudCheckpoint | None, *, has_volume: bool) -> tuple[EnvVar, ...]:
    dropped = {_RESUME_FROM, _RESUME_STEP} if has_volume else set()
    kept = [row for row in env if row.name not in dropped and not row.name.startswith(_SERVER_VARIABLES)]
    if checkpoint is not None and has_volume:
        kept.append(EnvVar(name=_RESUME_FROM, value=checkpoint.path.replace("$", "$$")))
        if checkpoint.step is not None:
            kept.append(EnvVar(name=_RESUME_STEP, value=str(checkpoint.step)))
    return tuple(kept)


def _uid(text: str) -> str:
    """Return the UID of the annotation. Returns an empty string if it is malformed: tenants can write it."""
    return text if _UID.fullmatch(text) else ""


def _checkpoint(text: str) -> CloudCheckpoint | None:
    """Return the checkpoint of the annotation. Returns None if it is missing or malformed: tenants can write it."""
    try:
        return untrusted_json.decode(text, CloudCheckpoint) if text else None
    except InvalidJson:
        return None
