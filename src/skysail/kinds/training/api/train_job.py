"""API type TrainJob, for a cluster without Kubeflow Trainer: same group, kind and fields, so that manifests apply.

If Trainer is installed, its own CRD stays: this one never replaces it. All three spellings of pod overrides that
Trainer has had are accepted and stored unchanged.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from skysail.kube.api import fields
from skysail.kube.api.crd import Column, CustomKind
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import Resource
from skysail.kube.api.schema import Rule

Overrides = Annotated[tuple[fields.FreeFormObject, ...], Meta(max_length=64)]


class RuntimeRef(fields.ApiStruct, frozen=True):
    """Runtime that the job is based on."""

    name: Annotated[fields.Name, Meta(description="Name of the runtime.")]
    api_group: Annotated[fields.ShortText, Meta(description="API group of the runtime.")] = "trainer.kubeflow.org"
    kind: Annotated[Literal["ClusterTrainingRuntime", "TrainingRuntime"], Meta(description="Kind of the runtime.")] = (
        "ClusterTrainingRuntime"
    )


class SecretRef(fields.ApiStruct, frozen=True):
    """Secret in the same namespace."""

    name: Annotated[fields.Name, Meta(description="Name of the Secret.")]


class Source(fields.ApiStruct, frozen=True):
    """Data set or model to download before training."""

    storage_uri: Annotated[fields.Url, Meta(description="URI: hf://, s3:// or cache://.")] = ""
    env: Annotated[fields.Env, Meta(description="Environment variables of the container that downloads it.")] = ()
    secret_ref: Annotated[SecretRef | None, Meta(description="Secret with the credentials.")] = None


class Initializer(fields.ApiStruct, frozen=True):
    """Data set and model to download before training."""

    dataset: Annotated[Source | None, Meta(description="Data set.")] = None
    model: Annotated[Source | None, Meta(description="Model to start from.")] = None


class Trainer(fields.ApiStruct, frozen=True):
    """Overrides of the training containers of the runtime."""

    image: Annotated[fields.Image | None, Meta(description="Container image.")] = None
    command: Annotated[fields.Words, Meta(description="Command that replaces the image's entrypoint.")] = ()
    args: Annotated[fields.Words, Meta(description="Arguments of the command.")] = ()
    env: Annotated[fields.Env, Meta(description="Environment variables.")] = ()
    num_nodes: Annotated[Annotated[int, Meta(ge=1, le=10000)] | None, Meta(description="Number of training nodes.")] = (
        None
    )
    resources_per_node: Annotated[
        fields.ResourceRequirements | None, Meta(description="Compute resources of each node.")
    ] = None
    num_proc_per_node: Annotated[
        Annotated[str, Meta(max_length=16)] | int | None,
        Meta(description="Processes on each node: a number, auto, cpu or gpu."),
    ] = None


class TrainJobSpec(fields.ApiStruct, frozen=True):
    """Training to run, and its runtime."""

    runtime_ref: Annotated[RuntimeRef, Meta(description="Runtime that the job is based on.")]
    initializer: Annotated[Initializer | None, Meta(description="Data set and model to download before training.")] = (
        None
    )
    trainer: Annotated[Trainer | None, Meta(description="Overrides of the training containers of the runtime.")] = None
    runtime_patches: Annotated[
        Overrides, Meta(description="Changes to the runtime's template (Trainer 2.2 and newer).")
    ] = ()
    pod_template_overrides: Annotated[Overrides, Meta(description="Changes to the pods (Trainer 2.1).")] = ()
    pod_spec_overrides: Annotated[Overrides, Meta(description="Changes to the pods (Trainer 2.0).")] = ()
    suspend: Annotated[bool, Meta(description="Suspend the job.")] = False
    active_deadline_seconds: Annotated[
        Annotated[int, Meta(ge=1, le=2**31 - 1)] | None,
        Meta(description="Seconds after which a running job is stopped and fails."),
    ] = None
    managed_by: Annotated[
        Literal["trainer.kubeflow.org/trainjob-controller", "kueue.x-k8s.io/multikueue"],
        Meta(description="Controller of this job. Immutable."),
    ] = "trainer.kubeflow.org/trainjob-controller"


class JobStatus(fields.ApiStruct, frozen=True, kw_only=True):
    """Pod counts of one part of the job."""

    name: Annotated[fields.ShortText, Meta(description="Name of the part.")]
    ready: Annotated[fields.Count, Meta(description="Jobs whose pods are ready.")] = 0
    succeeded: Annotated[fields.Count, Meta(description="Jobs that succeeded.")] = 0
    failed: Annotated[fields.Count, Meta(description="Jobs that failed.")] = 0
    active: Annotated[fields.Count, Meta(description="Jobs with pods.")] = 0
    suspended: Annotated[fields.Count, Meta(description="Suspended Jobs.")] = 0


class TrainerMetric(fields.ApiStruct, frozen=True, kw_only=True):
    """One number that the training reported."""

    name: Annotated[fields.ShortText, Meta(description="Name, such as loss.")]
    value: Annotated[fields.ShortText, Meta(description="Value, as the training wrote it.")]


class TrainerStatus(fields.ApiStruct, frozen=True, kw_only=True):
    """Progress that the training reported."""

    progress_percentage: Annotated[
        Annotated[int, Meta(ge=0, le=100)] | None, Meta(description="Progress in percent.")
    ] = None
    estimated_remaining_seconds: Annotated[
        fields.Seconds | None, Meta(description="Estimated seconds until the training finishes.")
    ] = None
    metrics: Annotated[tuple[TrainerMetric, ...], Meta(max_length=256, description="Newest metrics.")] = ()
    last_updated_time: Annotated[fields.Time | None, Meta(description="Time of the last report.")] = None


class TrainJobStatus(fields.ApiStruct, frozen=True, kw_only=True):
    """Observed state of the job."""

    conditions: fields.Conditions = ()
    jobs_status: Annotated[
        tuple[JobStatus, ...], Meta(max_length=100, description="Pod counts of each part of the job.")
    ] = ()
    trainer_status: Annotated[TrainerStatus | None, Meta(description="Progress that the training reported.")] = None
    observed_generation: fields.ObservedGeneration = 0


class TrainJob(Object, frozen=True, gc=False, rename="camel"):
    """A training run on a Kubeflow runtime."""

    spec: TrainJobSpec
    status: TrainJobStatus = field(default_factory=TrainJobStatus)


TRAIN_JOB = CustomKind(
    resource=Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob"),
    struct=TrainJob,
    columns=(Column("Runtime", ".spec.runtimeRef.name"),),
    rules=(
        Rule(
            "self.managedBy == oldSelf.managedBy",
            "managedBy is immutable: delete the TrainJob and create it with the new value",
            ".managedBy",
        ),
    ),
)
