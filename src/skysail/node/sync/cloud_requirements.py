"""Requirements of a pod at a cloud, from its spec and its annotations, and what the node does not honour. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from skysail.base.names import Annotation, EventReason, Label
from skysail.claims.requirements import restarts
from skysail.claims.requirements.cloud_requirements import CloudRequirements
from skysail.claims.requirements.types import CHEAPEST, OffloadRequest
from skysail.cloud.account import RegistryCredentials
from skysail.cloud.errors import Rejected
from skysail.cloud.provider import ResourceLimits
from skysail.kube.api.objects import OwnerReference
from skysail.node.config import cloud_pod, container_config
from skysail.node.config.container_overrides import offload_request
from skysail.node.pod_types import Pod
from skysail.node.sync.unsupported_fields import UnsupportedFields

_INDEX = "batch.kubernetes.io/job-completion-index"
# Controllers that make another pod when one has failed, and leave the failed one: its claim remembers which cloud had
# no capacity. A StatefulSet deletes the pod, and its replacement would come back to the same cloud.
_REPLACING = frozenset({"Job", "ReplicaSet"})
_DEFAULT_GRACE = 30
_MAX_SENTENCES = 20
_MAX_NAMES = 10
# Fields of a TrainingJob by the volume that they make.
_TRAINING_FIELDS = {
    "data": "spec.dataVolume of the TrainingJob",
    "checkpoints": "spec.checkpoint.claimName of the TrainingJob",
}


def requirements(pod: Pod, credentials: RegistryCredentials | None = None) -> CloudRequirements:
    """Return what the pod asks of its cloud, with the image that container mode has put into it.

    Raises Rejected if annotations are malformed or contradict each other.
    """
    request, grace = offload_request(pod), pod.spec.termination_grace_period_seconds
    if request.errors:
        raise Rejected(EventReason.INVALID_ANNOTATION, " ".join(_first(request.errors)))
    is_automatic = (pod.metadata.annotations or {}).get(Annotation.AUTOMATIC) == "true"
    return CloudRequirements(
        gpus=request.gpus,
        replicas=request.replicas,
        size=container_config.machine_size(pod.spec.containers[0]) if pod.spec.containers else ResourceLimits(),
        seconds=_seconds(pod, request),
        grace=float(_DEFAULT_GRACE if grace is None else grace),
        work=work_key(pod),
        job=owner.uid if (owner := _job(pod)) else "",
        controller=controller.uid if (controller := _replacing_controller(pod)) else "",
        gpu_memory=request.gpu_memory,
        regions=request.regions,
        cloud_types=request.cloud_types,
        cuda_versions=request.cuda_versions,
        max_usd_per_hour=request.max_usd_per_hour,
        max_cost_usd=request.max_cost_usd,
        options=request.options,
        image=pod.spec.containers[0].image if pod.spec.containers else "",
        uses_secrets=credentials is not None or uses_secrets(pod),
        is_automatic=is_automatic,
        registry_credentials=credentials,
        is_cheapest=request.provider == CHEAPEST,
        # The replacement of a pod that names its provider or its node would come back to the same provider.
        may_leave=_replacing_controller(pod) is not None and (request.provider == CHEAPEST or is_automatic),
    )


def work_key(pod: Pod) -> str:
    """Return the key of one index of an Indexed Job, which one pod at a time works on, or an empty string."""
    owner = _job(pod)
    index = (pod.metadata.annotations or {}).get(_INDEX)
    return f"{owner.uid}/{index}" if owner and index is not None else ""


def uses_secrets(pod: Pod) -> bool:
    """Return whether variables or volumes of the pod hold values of Secrets."""
    return any(reference.kind == container_config.SECRET for reference in container_config.references(pod))


def unsupported(pod: Pod, provider: str) -> UnsupportedFields:
    """Return annotations, containers and volumes of the pod, as the API server has it, that the cloud cannot honour.

    Annotations that decide about money are rejected.
    """
    request = offload_request(pod)
    rejected = (*request.errors, *unsupported_volumes(pod, provider))
    return UnsupportedFields(_first(rejected), (*cloud_pod.ignored(pod), *_ignored(request)))


def unsupported_volumes(pod: Pod, provider: str) -> tuple[str, ...]:
    """Return containers and volumes without which the pod would be wrong, each as a sentence."""
    return (*cloud_pod.rejected(pod), *_cluster_volumes(cloud_pod.effective(pod, provider)))


def warnings(pod: Pod) -> tuple[str, ...]:
    """Return sentences about values that fell back to a default."""
    return _first([warned.message for warned in offload_request(pod).warnings])


def restart_warning(pod: Pod) -> str:
    """Return a sentence if the pod looks like a single run and is launched again after each exit, or nothing."""
    has_ports = any(container.ports for container in pod.spec.containers)
    return restarts.warning(
        pod.spec.restart_policy,
        has_controller=pod.metadata.controller is not None,
        is_server=has_ports or offload_request(pod).tunnel_port is not None,
    )


def lost_retry(pod: Pod) -> str:
    """Return a sentence if the Job of a pod that ends without capacity may count that as a failure, or nothing."""
    if _job(pod) is None:
        return ""
    if pod.spec.restart_policy != "Never":
        return (
            "The Job loses one retry: only a Job with restartPolicy Never can have a podFailurePolicy that ignores "
            "DisruptionTarget."
        )
    return "The Job loses one retry, unless its podFailurePolicy ignores DisruptionTarget."


def _ignored(request: OffloadRequest) -> Iterator[str]:
    if request.not_honoured:
        yield f"metadata.annotations[{_listed(request.not_honoured)}]: not honoured yet."
    if request.unknown:
        yield f"metadata.annotations[{_listed(request.unknown)}]: unknown to this node. Check the spelling."
    if request.retries:
        yield (
            f"metadata.annotations[{Annotation.MODAL_RETRIES}]: restarts follow the pod's restartPolicy. Use "
            "restartPolicy: OnFailure, or backoffLimit of a Job."
        )


def _cluster_volumes(pod: Pod) -> Iterator[str]:
    fields = _TRAINING_FIELDS if Label.TRAINING_JOB_UID in (pod.metadata.labels or {}) else {}
    for index, volume in enumerate(pod.spec.volumes):
        path = f"spec.volumes[{index}]"
        if volume.persistent_volume_claim is not None and volume.name in fields:
            yield f"{fields[volume.name]}: a cloud cannot mount PVCs of the cluster. Remove the field, or stay here."
        elif volume.persistent_volume_claim is not None:
            yield f"{path}.persistentVolumeClaim: a cloud cannot mount PVCs of the cluster. Use an emptyDir."
        if volume.host_path is not None:
            yield f"{path}.hostPath: a cloud has no files of a node. Use an emptyDir, or a ConfigMap."


def _job(pod: Pod) -> OwnerReference | None:
    owner = pod.metadata.controller
    return owner if owner and owner.kind == "Job" else None


def _replacing_controller(pod: Pod) -> OwnerReference | None:
    """Return the controller of the pod if it replaces a pod that has failed, also one whose containers restart."""
    owner = pod.metadata.controller
    return owner if owner and owner.kind in _REPLACING else None


def _seconds(pod: Pod, request: OffloadRequest) -> float | None:
    limits = (pod.spec.active_deadline_seconds, request.max_lifetime)
    return min((float(limit) for limit in limits if limit is not None), default=None)


def _first(sentences: Sequence[str]) -> tuple[str, ...]:
    """Return a limited number of sentences, because conditions and container statuses repeat them."""
    rest = len(sentences) - _MAX_SENTENCES
    return (*sentences[:_MAX_SENTENCES], *((f"And {rest} more.",) if rest > 0 else ()))


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _MAX_NAMES
    return ", ".join((*names[:_MAX_NAMES], *((f"and {rest} more",) if rest > 0 else ())))
