"""Pods that each kind of workload creates, with the owners that they inherit from, for `skysail plan`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from skysail.base.names import Annotation
from skysail.kinds.modal_endpoints import desired, webhook
from skysail.kinds.modal_endpoints.children import manifests
from skysail.kinds.modal_endpoints.desired import Desired
from skysail.kinds.modal_endpoints.types import ModalEndpoint, ModalFunction
from skysail.kinds.offload.objects import Pod
from skysail.kinds.offload.plan import gangs
from skysail.kinds.offload.plan.gangs import MemberGroup, Owner
from skysail.kinds.offload.plan.train_job_request import asks_for_modal
from skysail.kinds.serving.admission import validation as model_validation
from skysail.kinds.serving.api.types import KINDS as MODEL_KINDS
from skysail.kinds.serving.api.types import ML_MODEL, MLModel, Model, ModelDeployment
from skysail.kinds.serving.children import pod_templates
from skysail.kinds.serving.spec import revisions
from skysail.kinds.serving.spec.config import ServingConfig
from skysail.kinds.serving.spec.desired import Autoscaling, desired_model
from skysail.kinds.serving.spec.runtimes import RUNTIMES
from skysail.kinds.training.api.modal_job import ModalJob
from skysail.kinds.training.api.train_job import TrainJob
from skysail.kinds.training.api.training_job import TrainingJob
from skysail.kinds.training.children import modal_job, train_job
from skysail.kinds.training.children.manifests import build_children
from skysail.kube.api import quantities
from skysail.kube.api.objects import Meta

Manifest = dict[str, Any]

_DEFAULT_BACKOFF_LIMIT = 6
# Placeholder for the UID that the API server will choose. Labels of pods hold it.
_UID = "00000000-0000-0000-0000-000000000000"


_Rows = tuple[dict[str, Any], ...] | None


class _Resources(msgspec.Struct, frozen=True):
    limits: dict[str, str | float | None] | None = None
    requests: dict[str, str | float | None] | None = None


class _EnvVar(msgspec.Struct, frozen=True, rename="camel"):
    value_from: dict[str, Any] | None = None


class _Container(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    resources: _Resources | None = None
    env: tuple[_EnvVar, ...] | None = None
    env_from: _Rows = None


class _Term(msgspec.Struct, frozen=True, rename="camel"):
    match_expressions: _Rows = None
    match_fields: _Rows = None


class _Selector(msgspec.Struct, frozen=True, rename="camel"):
    node_selector_terms: tuple[_Term, ...] | None = None


class _NodeAffinity(msgspec.Struct, frozen=True):
    required: _Selector | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")


class _Affinity(msgspec.Struct, frozen=True, rename="camel"):
    node_affinity: _NodeAffinity | None = None
    pod_affinity: dict[str, Any] | None = None


class _PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    """Fields of a pod that the placement takes as valid, because it reads them from the API server."""

    containers: tuple[_Container, ...] = ()
    init_containers: tuple[_Container, ...] | None = None
    volumes: _Rows = None
    node_selector: dict[str, str] | None = None
    tolerations: tuple[dict[str, str | int | None], ...] | None = None
    affinity: _Affinity | None = None
    active_deadline_seconds: int | None = None


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Pods of one object. `owners`: nearest first. `pods`: number in total. `parallel`: number at the same time.

    `retries`: further pods that failures may cost. `is_endless`: pods are replaced for as long as the object exists.
    `containers`: containers of an App that one pod stands for. `notes`: sentences on what the forecast does not know.
    """

    kind: str
    pod: Pod
    owners: tuple[Owner, ...] = ()
    pods: int = 1
    parallel: int = 1
    retries: int = 0
    is_endless: bool = False
    containers: int = 1
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.owners[-1].name if self.owners else self.pod.metadata.name

    @property
    def namespace(self) -> str:
        return self.pod.metadata.namespace


def name_of(manifest: Manifest) -> str:
    metadata = metadata_of(manifest)
    return str(metadata.get("name") or metadata.get("generateName") or "")


def metadata_of(manifest: Manifest) -> Manifest:
    found: Manifest = manifest.get("metadata") or {}
    return found


def _single(manifest: Manifest, namespace: str) -> Iterator[Workload]:
    yield Workload(kind="Pod", pod=_pod(manifest, name_of(manifest), namespace))


def _own_job(manifest: Manifest, namespace: str) -> Iterator[Workload]:
    yield _job(manifest, (), "Job", namespace)


def _cron_job(manifest: Manifest, namespace: str) -> Iterator[Workload]:
    template = (manifest.get("spec") or {}).get("jobTemplate") or {}
    job = {**template, "metadata": {**metadata_of(template), "name": name_of(manifest)}}
    yield _job(job, (_owner("CronJob", manifest),), "CronJob", namespace)


def _replicated(manifest: Manifest, namespace: str) -> Iterator[Workload]:
    kind, spec = manifest["kind"], manifest.get("spec") or {}
    replicas = _count(spec, "replicas")
    pod = _pod(spec.get("template") or {}, name_of(manifest), namespace)
    owners = (_owner(kind, manifest),)
    yield Workload(kind=kind, pod=pod, owners=owners, pods=replicas, parallel=replicas, is_endless=True)


def _training_job(
    manifest: Manifest, namespace: str, owners: tuple[Owner, ...] = (), kind: str = "TrainingJob"
) -> Iterator[Workload]:
    job = msgspec.convert(_as_stored(manifest, namespace), TrainingJob)
    for _, child in build_children(job, 0, None).jobs:
        yield _job(child, (_owner("TrainingJob", manifest), *owners), kind, namespace)


def _modal_job(manifest: Manifest, namespace: str) -> Iterator[Workload]:
    job = msgspec.convert(_as_stored(manifest, namespace), ModalJob)
    errors = modal_job.errors(job.spec)
    if errors:
        raise ValueError(" ".join(errors))
    yield from _training_job(modal_job.training_job(job), namespace, (_owner("ModalJob", manifest),), "ModalJob")


def _train_job(manifest: Manifest, namespace: str) -> Iterator[Workload]:
    """Yield the pods of a TrainJob as Skysail runs it, or with Kubeflow Trainer if only Trainer has its runtime."""
    job, owner = msgspec.convert(_as_stored(manifest, namespace), TrainJob), _owner("TrainJob", manifest)
    spec = manifest.get("spec") or {}
    if asks_for_modal(spec):
        annotations = {Annotation.MODAL_ENABLED.value: "true", **owner.annotations}
        owner = msgspec.structs.replace(owner, annotations=annotations)
    if not train_job.errors(job.spec):
        yield from _training_job(train_job.training_job(job, ""), namespace, (owner,), "TrainJob")
        return
    trainer = spec.get("trainer") or {}
    container = {"name": "node", "image": trainer.get("image"), "resources": trainer.get("resourcesPerNode") or {}}
    pod = _pod({"spec": {"containers": [container]}}, owner.name, namespace)
    nodes = _count(trainer, "numNodes")
    # Trainer runs the nodes as the ranks of a JobSet.
    job_set = Owner(kind="JobSet", name=owner.name, groups=(MemberGroup("node", pods=nodes),), has_ranks=True)
    note = "The pod template of the runtime is not read: only what the TrainJob itself says is planned."
    yield Workload(kind="TrainJob", pod=pod, owners=(job_set, owner), pods=nodes, parallel=nodes, notes=(note,))


def _job_set(manifest: Manifest, namespace: str) -> Iterator[Workload]:
    owner, spec = _owner("JobSet", manifest), manifest.get("spec") or {}
    restarts = _count(spec.get("failurePolicy") or {}, "maxRestarts", 0)
    for row in spec.get("replicatedJobs") or ():
        template, jobs = row.get("template") or {}, _count(row, "replicas")
        name = f"{owner.name}-{row.get('name', '')}"
        job = {**template, "metadata": {**metadata_of(template), "name": name, "namespace": namespace}}
        found = _job(job, (owner,), "JobSet", namespace)
        yield msgspec.structs.replace(
            found, pods=found.pods * jobs, parallel=found.parallel * jobs, retries=restarts * found.pods * jobs
        )


def _training_operator_job(manifest: Manifest, namespace: str) -> Iterator[Workload]:
    kind, spec = manifest["kind"], manifest.get("spec") or {}
    owner = _owner(kind, manifest)
    groups: Manifest = next((value for name, value in sorted(spec.items()) if name.endswith("ReplicaSpecs")), {})
    limit = _count(spec.get("runPolicy") or {}, "backoffLimit", 0)
    for name, row in groups.items():
        replicas = _count(row, "replicas")
        pod = _pod(row.get("template") or {}, f"{owner.name}-{name.casefold()}", namespace)
        yield Workload(kind=kind, pod=pod, owners=(owner,), pods=replicas, parallel=replicas, retries=limit)


def _endpoint(manifest: Manifest, namespace: str) -> Iterator[Workload]:
    endpoint = msgspec.convert(_as_stored(manifest, namespace), ModalEndpoint)
    yield _app(manifest, endpoint, desired.of_endpoint(endpoint, {}, ""))


def _function(manifest: Manifest, namespace: str) -> Iterator[Workload]:
    function = msgspec.convert(_as_stored(manifest, namespace), ModalFunction)
    yield _app(manifest, function, desired.of_function(function, {}, ""))


def _app(manifest: Manifest, object_: ModalEndpoint | ModalFunction, found: Desired) -> Workload:
    """Return the containers of an endpoint or function: all that Modal may run at the same time."""
    errors = webhook.validate(object_)
    if errors:
        raise ValueError(" ".join(errors))
    app = desired.as_app(found, object_).app
    assert app is not None, "an App has containers"
    template = manifests.deployment(object_, found, 0)["spec"]["template"]
    note = (
        f"Modal runs {app.min_containers} to {app.max_containers} containers, as many as requests need. The price is "
        "that of all."
    )
    return Workload(
        kind=manifest["kind"],
        pod=_pod(template, object_.metadata.name, object_.metadata.namespace),
        owners=(_owner(manifest["kind"], manifest),),
        containers=app.max_containers,
        is_endless=True,
        notes=(note,),
    )


def model_servers(manifest: Manifest, namespace: str, config: ServingConfig) -> Iterator[Workload]:
    """Yield the servers of a model. Raises ValueError for an unknown runtime."""
    stored, is_ml_model = _as_stored(manifest, namespace), manifest["kind"] == ML_MODEL.resource.kind
    model: Model = msgspec.convert(stored, MLModel) if is_ml_model else msgspec.convert(stored, ModelDeployment)
    wanted = desired_model(model, config)
    if wanted.want.runtime not in RUNTIMES:
        raise ValueError(f"no runtime serves it: use one of {', '.join(sorted(RUNTIMES))}")
    template = pod_templates.server_pod(wanted, revisions.new_candidate(wanted.want), config)
    name, scale, at_cloud = model.metadata.name, wanted.scale, bool(wanted.want.offload)
    servers = scale.min if isinstance(scale, Autoscaling) else scale.replicas
    # The operator may have other settings, such as hosts that models may come from.
    errors = model_validation.validate(model, config)
    notes = [f"An operator with these settings rejects the model: {error}" for error in errors]
    if isinstance(scale, Autoscaling) and not at_cloud:
        notes.append(f"The autoscaler runs {scale.min} to {scale.max} servers. {scale.min} are planned.")
    if at_cloud and servers:
        notes.append("An update, and each new claim period, runs one more server for a while.")
    yield Workload(
        kind=manifest["kind"],
        pod=_pod(template, name, namespace),
        # Without the annotations of the model: those that count are in the template.
        owners=(Owner(kind=manifest["kind"], name=name),),
        pods=servers,
        parallel=servers,
        is_endless=True,
        notes=tuple(notes),
    )


def _job(job: Manifest, owners: tuple[Owner, ...], kind: str, namespace: str) -> Workload:
    spec = job.get("spec") or {}
    parallelism = _count(spec, "parallelism")
    completions = _count(spec, "completions", parallelism)
    return Workload(
        kind=kind,
        pod=_pod(spec.get("template") or {}, name_of(job), namespace),
        owners=(_owner("Job", job), *owners),
        pods=max(completions, parallelism),
        parallel=min(parallelism, completions),
        retries=_count(spec, "backoffLimit", _DEFAULT_BACKOFF_LIMIT),
    )


def _as_stored(manifest: Manifest, namespace: str) -> Manifest:
    """Return the manifest with the metadata that the API server would add."""
    added = {"name": name_of(manifest), "namespace": namespace, "uid": _UID}
    return {**manifest, "metadata": {**metadata_of(manifest), **added}}


def _count(spec: Manifest, field: str, default: int = 1) -> int:
    """Return the number of a field. Raises ValueError if it is negative."""
    value = spec.get(field)
    number = default if value is None else int(value)
    if number < 0:
        raise ValueError(f"{field} is {number}, which is below 0")
    return number


def _pod(template: Manifest, name: str, namespace: str) -> Pod:
    metadata = msgspec.convert(metadata_of(template), Meta)
    metadata = msgspec.structs.replace(metadata, name=name, namespace=namespace)
    spec = template.get("spec") or {}
    if not spec.get("containers"):
        raise ValueError("its pod has no containers")
    _validate_resources(msgspec.convert(spec, _PodSpec))
    return Pod(metadata, spec)


def _validate_resources(spec: _PodSpec) -> None:
    """Raise ValueError for an amount that the API server would not accept."""
    for container in (*(spec.init_containers or ()), *spec.containers):
        resources = container.resources or _Resources()
        for kind, amounts in (("limits", resources.limits), ("requests", resources.requests)):
            for name, amount in (amounts or {}).items():
                number = quantities.parse(amount or 0)
                if not number.is_finite() or number < 0:
                    raise ValueError(f"resources.{kind} of container {container.name} has {name}: {amount}")


def _owner(kind: str, manifest: Manifest) -> Owner:
    metadata = msgspec.convert(metadata_of(manifest), Meta)
    return Owner(
        kind=kind,
        name=name_of(manifest),
        annotations=metadata.annotations or {},
        labels=metadata.labels or {},
        groups=gangs.member_groups(kind, manifest.get("spec") or {}),
        has_ranks=gangs.has_ranks(kind, manifest.get("spec") or {}),
    )


# Kinds whose workloads `model_servers` returns.
MODELS = tuple(kind.resource.kind for kind in MODEL_KINDS)
# Functions that return the workloads of a manifest in a namespace, by kind.
WORKLOADS: Mapping[str, Callable[[Manifest, str], Iterator[Workload]]] = {
    "Pod": _single,
    "Job": _own_job,
    "CronJob": _cron_job,
    **dict.fromkeys(("Deployment", "ReplicaSet", "StatefulSet"), _replicated),
    "TrainingJob": _training_job,
    "ModalJob": _modal_job,
    "TrainJob": _train_job,
    "JobSet": _job_set,
    **dict.fromkeys(("PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob", "MPIJob"), _training_operator_job),
    "ModalEndpoint": _endpoint,
    "ModalFunction": _function,
}
