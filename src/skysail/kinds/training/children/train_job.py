"""TrainingJob of a TrainJob, for a cluster without Kubeflow Trainer: a thin translation. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from skysail.base.names import Annotation
from skysail.claims.requirements.types import MODAL
from skysail.core.actions import Manifest
from skysail.kinds.training.api.train_job import TrainJob, TrainJobSpec
from skysail.kinds.training.api.training_job import TRAINING_JOB
from skysail.kinds.training.children.pod_template import CONTAINER
from skysail.kinds.training.children.pod_template_merge import merge
from skysail.kinds.training.children.replica_groups import GPU
from skysail.kube.api import child_names, quantities
from skysail.kube.api.train_job_overrides import read_overrides

MODAL_RUNTIME = "modal-pytorch-runtime"
_MAX_NAME_LENGTH = 200
_WORKSPACE = "/workspace"
_SCRIPT = "train.py"
# Replicated Jobs of a runtime that download before the training. They are not part of it.
_INITIALIZERS = frozenset({"dataset-initializer", "model-initializer"})
_MODAL_VARIABLE = "MODAL_ENABLED"


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """A runtime that Skysail has without Trainer. `has_script`: the training program comes with the runtime."""

    image: str
    command: tuple[str, ...] = ()
    provider: str = ""
    has_script: bool = False


RUNTIMES: Mapping[str, Runtime] = {
    MODAL_RUNTIME: Runtime(
        image="pytorch/pytorch:latest", command=("python", f"{_WORKSPACE}/{_SCRIPT}"), provider=MODAL, has_script=True
    ),
    "torch-distributed": Runtime(image="pytorch/pytorch:latest"),
}


def child_name(name: str) -> str:
    return f"{child_names.child_prefix(name, _MAX_NAME_LENGTH)}-trainjob"


def errors(spec: TrainJobSpec) -> tuple[str, ...]:
    """Return why the job cannot run without Trainer, each as a sentence with the fix."""
    found = []
    runtime = RUNTIMES.get(spec.runtime_ref.name)
    if runtime is None:
        known = ", ".join(sorted(RUNTIMES))
        found.append(
            f"spec.runtimeRef.name is {spec.runtime_ref.name}, and Kubeflow Trainer is not installed: use one of "
            f"{known}, or install Trainer."
        )
    if spec.initializer is not None:
        found.append("spec.initializer needs Kubeflow Trainer: download in the training program, or install Trainer.")
    if runtime is not None and not (_trainer(spec).get("command") or runtime.command):
        found.append("spec.trainer.command is empty: write the command of the training.")
    return tuple(found)


def training_job(job: TrainJob, script: str) -> Manifest:
    """Return the TrainingJob that runs the job. `script` is the training program of the shipped runtime."""
    spec, trainer, runtime = job.spec, _trainer(job.spec), RUNTIMES[job.spec.runtime_ref.name]
    template = _template(spec, trainer, runtime, script)
    container = template["spec"]["containers"][0]
    image = container.pop("image", None) or runtime.image
    command = container.pop("command", None) or list(runtime.command)
    args = container.pop("args", [])
    resources = container.pop("resources", {})
    manifest: Manifest = {
        "framework": "pytorch",
        "image": image,
        "command": command,
        "args": args,
        "workers": spec.trainer.num_nodes or 1 if spec.trainer else 1,
        "gpuPerWorker": _gpus(resources),
        "resources": _without_gpus(resources),
        "restartPolicy": "Never",
        "suspend": spec.suspend,
        "runPolicy": {"cleanPodPolicy": "None", **_deadline(spec)},
        "podTemplate": template,
    }
    return {
        "apiVersion": TRAINING_JOB.resource.api_version,
        "kind": TRAINING_JOB.resource.kind,
        "metadata": {
            "name": child_name(job.metadata.name),
            "namespace": job.metadata.namespace,
            "annotations": _annotations(job, runtime),
        },
        "spec": manifest,
    }


def _annotations(job: TrainJob, runtime: Runtime) -> dict[str, str]:
    """Return the annotations of the job, with a request for the cloud of its runtime."""
    kept = {name: value for name, value in (job.metadata.annotations or {}).items() if not name.startswith("kubectl.")}
    env = _trainer(job.spec).get("env") or ()
    asks = any(row.get("name") == _MODAL_VARIABLE and str(row.get("value", "")).casefold() != "false" for row in env)
    provider = runtime.provider or (MODAL if asks else "")
    return {Annotation.OFFLOAD.value: provider, **kept} if provider else kept


def _template(spec: TrainJobSpec, trainer: Manifest, runtime: Runtime, script: str) -> Manifest:
    """Return the pod template with all overrides. Its first container is the training container."""
    container: Manifest = {"name": CONTAINER, "workingDir": _WORKSPACE} if runtime.has_script else {"name": CONTAINER}
    container |= {name: trainer[name] for name in ("image", "command", "args", "env") if trainer.get(name)}
    if trainer.get("resourcesPerNode"):
        container["resources"] = trainer["resourcesPerNode"]
    if trainer.get("numProcPerNode") is not None:
        variable = {"name": "PET_NPROC_PER_NODE", "value": str(trainer["numProcPerNode"])}
        container["env"] = [*container.get("env", []), variable]
    metadata: Manifest = {}
    pod: Manifest = {"containers": [container]}
    for override in read_overrides(msgspec.to_builtins(spec)):
        if not override.jobs or override.jobs - _INITIALIZERS:
            metadata = merge(metadata, override.metadata)
            pod = merge(pod, _for_trainer(override.spec))
    if runtime.has_script and not pod["containers"][0].get("image"):
        metadata, pod = _with_script(metadata, pod, script)
    return {"metadata": {name: metadata[name] for name in ("labels", "annotations") if name in metadata}, "spec": pod}


def _for_trainer(spec: Manifest) -> Manifest:
    """Return the pod spec with our name for its first container: in a runtime it is called node or trainer."""
    containers = [dict(row) for row in spec.get("containers") or ()]
    if containers:
        containers[0]["name"] = CONTAINER
        return {**spec, "containers": containers}
    return dict(spec)


def _with_script(metadata: Manifest, pod: Manifest, script: str) -> tuple[Manifest, Manifest]:
    """Add the training program as a file: an annotation of the pod, so that no other object is needed."""
    annotations = {**(metadata.get("annotations") or {}), Annotation.TRAIN_SCRIPT.value: script}
    path = {"path": _SCRIPT, "fieldRef": {"fieldPath": f"metadata.annotations['{Annotation.TRAIN_SCRIPT}']"}}
    volume = {"name": "workspace", "downwardAPI": {"items": [path]}}
    mount = {"name": "workspace", "mountPath": _WORKSPACE, "readOnly": True}
    first, *others = pod["containers"]
    mounted = {**first, "volumeMounts": [*first.get("volumeMounts", []), mount]}
    volumes = [*pod.get("volumes", []), volume]
    return {**metadata, "annotations": annotations}, {**pod, "containers": [mounted, *others], "volumes": volumes}


def _trainer(spec: TrainJobSpec) -> Manifest:
    """Return the trainer as plain JSON, so that its lists are lists."""
    return msgspec.json.decode(msgspec.json.encode(spec.trainer), type=Manifest) if spec.trainer is not None else {}


def _gpus(resources: Manifest) -> int:
    amounts = [(resources.get(kind) or {}).get(GPU) for kind in ("limits", "requests")]
    return max((int(quantities.parse(amount)) for amount in amounts if amount is not None), default=0)


def _without_gpus(resources: Manifest) -> Manifest:
    kinds = ((kind, resources.get(kind) or {}) for kind in ("limits", "requests"))
    rest = {kind: {name: value for name, value in amounts.items() if name != GPU} for kind, amounts in kinds}
    return {kind: amounts for kind, amounts in rest.items() if amounts}


def _deadline(spec: TrainJobSpec) -> Manifest:
    seconds = spec.active_deadline_seconds
    return {} if seconds is None else {"activeDeadlineSeconds": seconds}
