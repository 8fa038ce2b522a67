"""TrainingJob of a ModalJob: a thin translation to the training engine, which runs it on the node of Modal. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from skysail.base.names import Annotation
from skysail.claims.requirements.types import MODAL
from skysail.cloud.gang_limits import GangLimits
from skysail.core.actions import Manifest
from skysail.kinds import modal_fields
from skysail.kinds.training.api.modal_job import ModalJob, ModalJobSpec
from skysail.kinds.training.api.training_job import TRAINING_JOB
from skysail.kinds.training.children.pod_template import CONTAINER
from skysail.kube.api import child_names, quantities
from skysail.kube.api.env_escape import literal

# Modal counts physical cores, Kubernetes counts threads.
_CPUS_PER_CORE = 2
_MAX_NAME_LENGTH = 200
MAX_GPUS = 8
# Placeholders in the words of a command, and the variables of a rank.
_PLACEHOLDERS = {"{rank}": "$(RANK)", "{world_size}": "$(WORLD_SIZE)"}


def child_name(name: str) -> str:
    return f"{child_names.child_prefix(name, _MAX_NAME_LENGTH)}-modaljob"


def gpu(spec: ModalJobSpec) -> tuple[str, int]:
    """Return type and number of GPUs. Both are empty without a GPU. Raises ValueError if the number is none."""
    if not spec.gpu:
        return "", 0
    type_, _, count = spec.gpu.partition(":")
    return type_, int(count or 1)


def errors(spec: ModalJobSpec, gang_limits: GangLimits | None = None) -> tuple[str, ...]:
    """Return why the job cannot run, each as a sentence with the fix. `gang_limits`: limits of Modal on gangs."""
    return (*modal_fields.errors(spec.cpu, spec.memory, spec.env), *_gpu_errors(spec, gang_limits))


def _gpu_errors(spec: ModalJobSpec, gang_limits: GangLimits | None) -> Iterator[str]:
    try:
        type_, count = gpu(spec)
    except ValueError:
        yield f"spec.gpu is {spec.gpu}: write a type, or a type and a count, such as T4, A100-80GB or H100:2."
        return
    if count > MAX_GPUS:
        yield f"spec.gpu asks for {count} GPUs of one container: ask for at most {MAX_GPUS}, and set replicas."
    elif spec.replicas > 1 and gang_limits is not None:
        problem = gang_limits.problem("Modal", type_, count, spec.replicas)
        if problem:
            yield f"spec.gpu, spec.replicas: {problem}"


def training_job(job: ModalJob) -> Manifest:
    """Return the TrainingJob that runs the job."""
    spec, (gpu_type, gpus) = job.spec, gpu(job.spec)
    annotations = {Annotation.OFFLOAD.value: MODAL, Annotation.MODAL_TIMEOUT.value: str(spec.timeout)}
    if gpu_type:
        annotations[Annotation.MODAL_GPU_TYPE.value] = gpu_type
    if spec.tunnel_enabled:
        annotations[Annotation.MODAL_TUNNEL.value] = "true"
        annotations[Annotation.MODAL_TUNNEL_PORT.value] = str(spec.tunnel_port)
    amounts = {"cpu": f"{float(quantities.parse(spec.cpu)) * _CPUS_PER_CORE:g}", "memory": spec.memory}
    variables = {**spec.env, **({"MODAL_I6PN_ENABLED": "true"} if spec.enable_i6pn else {})}
    container: Manifest = {"name": CONTAINER, "env": [_variable(name, variables[name]) for name in sorted(variables)]}
    return {
        "apiVersion": TRAINING_JOB.resource.api_version,
        "kind": TRAINING_JOB.resource.kind,
        "metadata": {
            "name": child_name(job.metadata.name),
            "namespace": job.metadata.namespace,
            "annotations": annotations,
        },
        "spec": {
            "framework": "pytorch",
            "image": spec.image,
            "command": [_word(word) for word in spec.command],
            "args": [_word(word) for word in spec.args],
            "workers": spec.replicas,
            "gpuPerWorker": gpus,
            "resources": {"requests": amounts, "limits": amounts},
            "restartPolicy": "OnFailure" if spec.retries else "Never",
            "runPolicy": {"backoffLimit": spec.retries, "cleanPodPolicy": "None"},
            "podTemplate": {"spec": {"containers": [container]}},
        },
    }


def _word(word: str) -> str:
    """Return a word as Kubernetes expands it: verbatim, except for the placeholders of rank and size."""
    text = literal(word)
    for placeholder, variable in _PLACEHOLDERS.items():
        text = text.replace(placeholder, variable)
    return text


def _variable(name: str, value: str) -> Manifest:
    return {"name": name, "value": literal(value)}
